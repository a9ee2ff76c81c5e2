//! Open objects are closed in order, whichever call fails and whichever owner is dropped first; keys; rights; concurrent calls.

use std::collections::HashSet;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use trunkline_fabric::{AccessRights, ExportedDmaBuf, Fabric as _};
use trunkline_mem::{MemoryKind as Where, MemoryRange};
use trunkline_ofi::typed::{
    CallExclusion, EndpointOption, EndpointRole, MemoryDuty, MemoryIface, MrDisabled, MrEnabled, MrRequest,
    MrScope, OfiDomain, OfiEndpoint, OfiErrno, OfiHints, OfiOpenStep, OfiQueue, OfiRegisterError,
    PayloadTraffic, RegisterStep, query_infos, register_memory,
};
use trunkline_ofi::{OfiConfig, OfiFabric};
use trunkline_sys::ofi::{self, caps, class, errno, mr_mode, threading};

use crate::world::{ALL, Echo, Kind, Point, World};
use crate::{Nic, WANTS};

/// Registration modes of providers, which choose keys or leave that to the application.
pub(crate) const MODES: [i32; 4] = [
    0,
    mr_mode::PROV_KEY | mr_mode::VIRT_ADDR | mr_mode::ALLOCATED | mr_mode::LOCAL,
    mr_mode::ENDPOINT,
    mr_mode::ENDPOINT | mr_mode::PROV_KEY | mr_mode::ALLOCATED,
];

fn number<R: EndpointRole>(mr: &MrEnabled<R>) -> u64 {
    mr.key().unwrap().number()
}

pub(crate) fn kind(mr_mode: i32) -> Kind {
    Kind { mr_mode, ..Kind::default() }
}

#[test]
fn failed_opening_steps_leave_nothing_open() {
    let cases = [
        (Point::Fabric, OfiOpenStep::Fabric),
        (Point::Domain, OfiOpenStep::Domain),
        (Point::Queue, OfiOpenStep::Queue),
        (Point::Vector, OfiOpenStep::Vector),
        (Point::Endpoint, OfiOpenStep::Endpoint),
        (Point::BindQueue, OfiOpenStep::BindQueue),
        (Point::BindVector, OfiOpenStep::BindVector),
        (Point::Option, OfiOpenStep::Option(ofi::opt::FI_HMEM_P2P)),
        (Point::EnableEndpoint, OfiOpenStep::Enable),
    ];
    let (world, library) = World::begin(Kind::default());
    let option = EndpointOption::from_int(ofi::opt::FI_HMEM_P2P, ofi::hmem_p2p::DISABLED);
    let attempt = || {
        let info = query_infos(&OfiHints::new(&library, ALL).unwrap(), None).unwrap().remove(0);
        let domain = OfiDomain::open(&info)?;
        let watch = domain.watch_close_failures();
        let queue = OfiQueue::open(&domain, &WANTS)?;
        let endpoint = OfiEndpoint::<PayloadTraffic>::open(&info, &queue, &[option]);
        drop((queue, domain));
        let named = endpoint.as_ref().err().map(ToString::to_string);
        drop(endpoint?);
        assert_eq!((watch().count, named), (0, None));
        Ok(())
    };
    for (point, step) in cases {
        world.refuse(point, errno::ENOSPC);
        let error: trunkline_ofi::typed::OfiOpenError = attempt().unwrap_err();
        assert_eq!((error.step, error.errno), (step, OfiErrno::new(errno::ENOSPC)), "{point:?}");
        let of_endpoint = ![OfiOpenStep::Fabric, OfiOpenStep::Domain, OfiOpenStep::Queue].contains(&step);
        assert_eq!(error.role, of_endpoint.then_some("data"), "{error}");
        assert_eq!((world.open(), world.infos.load(SeqCst)), (0, 0), "{point:?}");
        world.relent();
        attempt().unwrap();
        assert_eq!((world.open(), world.infos.load(SeqCst)), (0, 0));
    }
}

#[test]
fn failed_registration_steps_leave_nothing_open() {
    for mode in MODES {
        let nic = Nic::new(kind(mode));
        let endpoint = mode & mr_mode::ENDPOINT != 0;
        let steps = [
            (Point::Regattr, RegisterStep::Regattr, true),
            (Point::BindMr, RegisterStep::Bind, endpoint),
            (Point::EnableMr, RegisterStep::Enable, endpoint),
            (Point::Key, RegisterStep::Key, endpoint),
        ];
        for (point, step, here) in steps {
            nic.world.refuse(point, errno::EINVAL);
            let before = nic.world.open();
            let made = nic.register(&nic.ctrl, MemoryDuty::Mailbox);
            assert_eq!(made.is_err(), here, "{point:?} with {mode:#x}");
            if let Some(error) = made.err() {
                let cause = if step == RegisterStep::Key { OfiErrno::NO_KEY } else { OfiErrno::INVALID };
                let (role, duty) = ("control", MemoryDuty::Mailbox);
                assert_eq!(error, OfiRegisterError::Provider { step, role, duty, errno: cause });
                let text = error.to_string();
                assert!(
                    text.contains("a mailbox for control") && text.contains(&format!("{step:?}")),
                    "{text}"
                );
            }
            assert_eq!((nic.world.open(), nic.domain.key_leases().live_count()), (before, 0), "{point:?}");
            nic.world.relent();
            drop(nic.ctrl(MemoryDuty::Mailbox));
            assert_eq!((nic.world.open(), nic.domain.key_leases().live_count()), (before, 0), "{point:?}");
            assert_eq!(nic.domain.close_failures().count, 0);
        }
    }
}

#[test]
fn enabling_is_retried_a_bounded_number_of_times() {
    let nic = Nic::new(Kind::default());
    nic.world.again.store(4095, SeqCst);
    drop(nic.ctrl(MemoryDuty::Mailbox));
    assert_eq!(nic.world.again.load(SeqCst), 0);
    nic.world.again.store(5000, SeqCst);
    let (step, role, duty) = (RegisterStep::Enable, "control", MemoryDuty::Mailbox);
    let full = OfiRegisterError::Provider { step, role, duty, errno: OfiErrno::AGAIN };
    assert_eq!(nic.register(&nic.ctrl, duty).err(), Some(full));
    assert_eq!((nic.world.again.load(SeqCst), nic.world.open_of(class::MR)), (5000 - 4096, 0));
    // Enabling an endpoint is retried in the same way.
    let open = || OfiEndpoint::<PayloadTraffic>::open(&nic.info, &nic.queue, &[]);
    nic.world.again.store(4095, SeqCst);
    drop(open().unwrap());
    nic.world.again.store(5000, SeqCst);
    let error = open().err().unwrap();
    assert_eq!((error.step, error.role, error.errno), (OfiOpenStep::Enable, Some("data"), OfiErrno::AGAIN));
    assert_eq!((nic.world.again.load(SeqCst), nic.world.open_of(class::EP)), (5000 - 4096, 2));
}

#[test]
fn registration_keeps_its_endpoint_open() {
    for mode in MODES {
        let nic = Nic::new(kind(mode));
        let (user, mailbox) =
            (nic.data(MemoryDuty::User(AccessRights::WRITE)), nic.ctrl(MemoryDuty::Mailbox));
        let Nic { world, info, domain, queue, data, ctrl, .. } = nic;
        let watch = domain.watch_close_failures();
        world.take_log();
        // An abort: endpoints, queue and domain are dropped before the registrations.
        drop((data, ctrl, queue, domain, info));
        drop(user);
        drop(mailbox);
        let order = world.take_log();
        let expected: &[&str] = if mode & mr_mode::ENDPOINT != 0 {
            &["mr", "endpoint", "vector", "mr", "endpoint", "vector", "queue", "domain", "fabric"]
        } else {
            &["endpoint", "vector", "endpoint", "vector", "queue", "mr", "mr", "domain", "fabric"]
        };
        assert_eq!(order, expected, "with {mode:#x}");
        assert_eq!((world.open(), watch().count, world.infos.load(SeqCst)), (0, 0, 0));
    }
}

#[test]
fn failed_closes_are_counted() {
    let nic = Nic::new(Kind::default());
    let mr = nic.data(MemoryDuty::Landing);
    assert_eq!(nic.domain.close_failures().count, 0);
    nic.world.refuse(Point::CloseMr, errno::EBUSY);
    drop(mr);
    let refused = nic.domain.close_failures();
    assert_eq!((refused.count, refused.last), (1, Some(OfiErrno::BUSY)));
}

#[test]
fn key_is_freed_after_its_registration_is_closed() {
    for mode in [0, mr_mode::ENDPOINT] {
        let nic = Nic::new(kind(mode));
        let leases = Arc::clone(nic.domain.key_leases());
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let note = Arc::clone(&seen);
        let held = move |key| note.lock().unwrap().push(leases.is_leased(key));
        *nic.world.closing.lock().unwrap() = Some(Box::new(held));
        let mr = nic.data(MemoryDuty::User(AccessRights::WRITE));
        assert!(nic.domain.key_leases().is_leased(number(&mr)));
        drop(mr);
        assert_eq!((&seen.lock().unwrap()[..], nic.domain.key_leases().live_count()), (&[true][..], 0));
    }
}

#[test]
fn data_and_control_keys_are_distinct_per_domain() {
    for mode in [0, mr_mode::ENDPOINT] {
        let nic = Nic::new(Kind { key_bytes: 1, ..kind(mode) });
        let mut random = fastrand::Rng::with_seed(7);
        let (mut data, mut ctrl) = (Vec::new(), Vec::new());
        let mut model = HashSet::new();
        let mut exhausted = 0;
        for _ in 0..100_000 {
            let live = data.len() + ctrl.len();
            let made = match random.u32(..5) {
                0 | 1 => nic
                    .register(&nic.data, MemoryDuty::User(AccessRights::WRITE))
                    .map(|mr| (number(&mr), data.push(mr))),
                2 => nic.register(&nic.ctrl, MemoryDuty::Mailbox).map(|mr| (number(&mr), ctrl.push(mr))),
                _ => {
                    let gone = if random.bool() || ctrl.is_empty() {
                        let mr = (!data.is_empty()).then(|| data.swap_remove(random.usize(..data.len())));
                        mr.map(|mr: MrEnabled<PayloadTraffic>| number(&mr))
                    } else {
                        Some(number(&ctrl.swap_remove(random.usize(..ctrl.len()))))
                    };
                    assert!(gone.is_none_or(|key| model.remove(&key)));
                    continue;
                }
            };
            match made {
                Ok((key, ())) => assert!(model.insert(key), "key {key} was returned twice"),
                Err(OfiRegisterError::Keys { .. }) => {
                    assert_eq!(live, 255);
                    exhausted += 1;
                }
                Err(error) => panic!("{error}"),
            }
            assert_eq!(nic.domain.key_leases().live_count(), model.len());
        }
        assert_eq!(*nic.world.keys.lock().unwrap(), model);
        assert!(exhausted > 0, "the keys were never exhausted");
        drop((data, ctrl));
        assert_eq!((nic.domain.key_leases().live_count(), nic.domain.close_failures().count), (0, 0));
    }
}

#[test]
fn two_threads_never_get_one_key() {
    let nic = Nic::new(Kind { key_bytes: 1, threading: threading::SAFE, ..kind(0) });
    let (domain, memory) = (&nic.domain, &nic.memory);
    // Here the provider reports an error for a key that is in use.
    let turn = || {
        for _ in 0..20_000 {
            let wanted = MrRequest::for_host(memory, MemoryDuty::Landing);
            register_memory::<PayloadTraffic>(domain, &MrScope::Domain, &wanted).unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(turn);
        turn();
    });
    assert_eq!(nic.domain.key_leases().live_count(), 0);
}

#[test]
fn memory_gets_only_the_rights_of_its_duty() {
    let nic = Nic::new(Kind::default());
    let local = caps::SEND | caps::RECV | caps::READ | caps::WRITE;
    let cases = [
        (MemoryDuty::User(AccessRights::LOCAL), local),
        (MemoryDuty::User(AccessRights::WRITE), local | caps::REMOTE_WRITE),
        (MemoryDuty::User(AccessRights::ALL), local | caps::REMOTE_WRITE | caps::REMOTE_READ),
        (MemoryDuty::Mailbox, caps::REMOTE_WRITE),
        (MemoryDuty::Records, caps::WRITE),
        (MemoryDuty::Messages, caps::SEND | caps::RECV),
        (MemoryDuty::Bounce, caps::RECV),
        (MemoryDuty::Heads, caps::SEND | caps::WRITE),
        (MemoryDuty::Landing, caps::READ),
    ];
    for (duty, bits) in cases {
        let count = nic.world.asked.lock().unwrap().len();
        drop(nic.data(duty));
        let asked = nic.world.asked.lock().unwrap();
        assert_eq!(asked.len(), count + 1, "{duty} is registered once");
        let last = asked[count];
        assert_eq!(last.access, bits, "{duty}");
        assert_eq!((last.addr, last.len), (nic.memory.addr(), nic.memory.len()));
        assert_eq!((last.iface, last.device, last.flags), (ofi::hmem::SYSTEM, 0, 0));
        assert!(duty == MemoryDuty::Mailbox || bits & local != 0);
    }
}

#[test]
fn pages_exist_where_the_provider_requires_them() {
    let nic = Nic::new(Kind::default());
    assert!(nic.domain.provider_grant().allocated);
    // More than an allocator caches, and not from the start of a page.
    let memory = MemoryRange::heap(8 << 20);
    memory.store(5 << 20, 7).unwrap();
    // SAFETY: `memory` lives until the end of the test.
    let part = unsafe { MemoryRange::from_raw(memory.addr() + 100, (8 << 20) - 200, Where::Host) };
    let mr = register_memory(
        &nic.domain,
        &nic.data.mr_scope(),
        &MrRequest::for_host(&part, MemoryDuty::User(AccessRights::WRITE)),
    );
    assert!(mr.is_ok());
    assert_eq!((memory.load(5 << 20), memory.load(0)), (Ok(7), Ok(0)));
}

#[test]
fn memory_of_devices_names_its_device() {
    let mode = mr_mode::HMEM | mr_mode::ENDPOINT | mr_mode::PROV_KEY;
    let old = Nic::new(kind(mode));
    // SAFETY: no code accesses the bytes.
    let memory = unsafe { MemoryRange::from_raw(0x7000_0000, 8192, Where::Device(3)) };
    let file = std::fs::File::open("/dev/null").unwrap();
    let exported = ExportedDmaBuf { fd: file.as_fd(), offset: 4096 };
    let duty = MemoryDuty::User(AccessRights::WRITE);
    let cuda = MrRequest { memory: &memory, iface: MemoryIface::Cuda(3), dmabuf: None, duty };
    let make = |nic: &Nic, wanted: &MrRequest<'_>| {
        let made = register_memory(&nic.domain, &nic.data.mr_scope(), wanted);
        made.map(|_| *nic.world.asked.lock().unwrap().last().unwrap())
    };
    let asked = make(&old, &cuda).unwrap();
    assert_eq!((asked.iface, asked.device, asked.dmabuf), (ofi::hmem::CUDA, 3, None));
    let asked = make(&old, &MrRequest { iface: MemoryIface::Rocr(3), ..cuda }).unwrap();
    assert_eq!((asked.iface, asked.device), (ofi::hmem::ROCR, 3));
    // A dma-buf is passed only to interface versions that support it.
    let refused = make(&old, &MrRequest { dmabuf: Some(exported), ..cuda }).unwrap_err();
    assert!(refused.to_string().contains("1.20"), "{refused}");
    assert!(make(&old, &MrRequest { iface: MemoryIface::Host, ..cuda }).is_err());
    let host = MrRequest { memory: &old.memory, ..cuda };
    assert!(make(&old, &host).is_err());
    let new = Nic::new(Kind { version: ofi::version(2, 1), ..kind(mode) });
    let asked = make(&new, &MrRequest { dmabuf: Some(exported), ..cuda }).unwrap();
    assert_eq!((asked.flags, asked.addr, asked.len), (ofi::MR_DMABUF, 0x7000_0000, 8192));
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    assert_eq!(asked.dmabuf, Some((fd, 4096, 8192, 0x7000_0000 - 4096)));
    // Some providers have the capability without the mode.
    let silent = Nic::new(kind(mr_mode::ENDPOINT | mr_mode::PROV_KEY));
    assert!(make(&silent, &cuda).is_ok());
    let none = Nic::new(Kind { caps: ALL, ..kind(mode) });
    assert!(make(&none, &cuda).unwrap_err().to_string().contains("did not grant"));
}

#[test]
fn remote_base_follows_the_registration_mode() {
    let offsets = Nic::new(kind(mr_mode::ENDPOINT));
    assert_eq!(offsets.data(MemoryDuty::User(AccessRights::WRITE)).remote_base(), 0);
    let addresses = Nic::new(kind(mr_mode::VIRT_ADDR | mr_mode::PROV_KEY));
    assert_eq!(
        addresses.data(MemoryDuty::User(AccessRights::WRITE)).remote_base(),
        addresses.memory.addr() as u64
    );
}

#[test]
fn registration_has_the_kind_the_domain_requires() {
    let nic = Nic::new(Kind::default());
    let wanted = MrRequest::for_host(&nic.memory, MemoryDuty::Landing);
    let error = register_memory::<PayloadTraffic>(&nic.domain, &MrScope::Domain, &wanted).err().unwrap();
    let (step, role, duty) = (RegisterStep::Bind, "data", MemoryDuty::Landing);
    assert_eq!(error, OfiRegisterError::Provider { step, role, duty, errno: OfiErrno::INVALID });
    // The separate steps have the same result.
    let disabled = MrDisabled::make_disabled(&nic.domain, "data", &wanted).unwrap();
    let mr = disabled.bind_endpoint(&nic.data.make_anchor()).unwrap().enable().unwrap();
    // Memory that no peer may access has no key, whatever the provider returns.
    assert_eq!(mr.key(), None);
    assert!(number(&nic.data(MemoryDuty::User(AccessRights::WRITE))) >= 0x1000);
    assert_eq!(nic.world.open_of(class::MR), 1);
}

#[test]
fn long_keys_are_refused() {
    let nic = Nic::new(kind(mr_mode::RAW));
    assert_eq!(
        nic.register(&nic.data, MemoryDuty::User(AccessRights::WRITE)).err(),
        Some(OfiRegisterError::RawKeys)
    );
}

#[test]
fn calls_overlap_only_as_the_threading_model_allows() {
    let cases = [
        (threading::SAFE, mr_mode::ENDPOINT, CallExclusion::Nothing),
        (threading::COMPLETION, mr_mode::ENDPOINT, CallExclusion::All),
        (threading::ENDPOINT, 0, CallExclusion::SetUp),
        (threading::FID, 0, CallExclusion::SetUp),
        (threading::DOMAIN, 0, CallExclusion::All),
        (threading::UNSPEC, 0, CallExclusion::All),
    ];
    for (model, mode, exclusion) in cases {
        let mut nic = Nic::new(Kind { threading: model, ..kind(mode) });
        assert_eq!(nic.domain.call_exclusion(), exclusion);
        if exclusion != CallExclusion::All {
            continue;
        }
        nic.world.slow.store(true, SeqCst);
        let (domain, model, memory) = (Arc::clone(&nic.domain), nic.data.mr_scope(), nic.memory.clone());
        let other = std::thread::spawn(move || {
            for _ in 0..200 {
                register_memory(
                    &domain,
                    &model,
                    &MrRequest::for_host(&memory, MemoryDuty::User(AccessRights::WRITE)),
                )
                .unwrap();
            }
        });
        while !other.is_finished() {
            let _ = nic.queue.read_batch();
        }
        other.join().unwrap();
        assert!(!nic.world.overlapped.load(SeqCst), "two calls overlapped");
    }
}

#[test]
fn hints_and_offers_are_freed() {
    let (world, library) = World::begin(Kind::default());
    let hints = OfiHints::new(&library, ALL)
        .unwrap()
        .with_provider(c"first")
        .with_provider(c"second")
        .with_fabric(c"somewhere")
        .with_domain(c"nic0");
    let offers = query_infos(&hints, Some(c"127.0.0.1")).unwrap();
    assert_eq!(offers.len(), 2);
    assert_eq!(offers[1].names(), ["second", "somewhere", "nic0"]);
    assert_eq!(offers[0].duplicate_info().unwrap().names(), offers[0].names());
    assert!(query_infos(&OfiHints::new(&library, caps::MULTICAST).unwrap(), None).unwrap().is_empty());
    world.strangers.store(true, SeqCst);
    assert_eq!(query_infos(&hints, None).unwrap().len(), 1);
    world.strangers.store(false, SeqCst);
    // An endless list is read only up to a limit.
    world.offers.store(1100, SeqCst);
    assert_eq!(query_infos(&hints, None).unwrap().len(), 1024);
    drop((offers, hints));
    assert_eq!(world.infos.load(SeqCst), 0);
}

#[test]
fn provider_with_too_little_cq_data_is_refused() {
    let config = OfiConfig { provider: Some("recorded".to_owned()), ..OfiConfig::default() };
    for (data_bytes, is_taken) in [(8, true), (4, true), (2, false)] {
        let (world, library) = World::begin(Kind { data_bytes, ..Kind::default() });
        *world.echo.lock().unwrap() = Echo::Whole;
        match OfiFabric::with_library(&library, &config) {
            Ok(fabric) => assert!(is_taken && fabric.nics().len() == 1, "{data_bytes} bytes"),
            Err(error) => {
                let said = error.to_string();
                assert!(!is_taken && said.contains("provider recorded"), "{said}");
                assert!(said.contains("4 bytes of data"), "{said}");
            }
        }
    }
}

#[test]
fn providers_over_sockets_are_not_believed_thread_safe() {
    for (provider, exclusion) in
        [(c"net", CallExclusion::All), (c"tcp;ofi_rxm", CallExclusion::All), (c"efa", CallExclusion::Nothing)]
    {
        let (_world, library) =
            World::begin(Kind { threading: threading::SAFE, mr_mode: 0, ..Kind::default() });
        let hints = OfiHints::new(&library, ALL).unwrap().with_provider(provider);
        let info = query_infos(&hints, None).unwrap().remove(0);
        assert_eq!(OfiDomain::open(&info).unwrap().call_exclusion(), exclusion, "{provider:?}");
    }
}
