//! The plugin and `trunkline bench` over libfabric's providers for TCP and for shared memory, on this host. Without
//! libfabric, or without such a provider, each test is a counted skip.

pub(crate) mod acceptance;
pub(crate) mod crowd;
mod endings;
pub(crate) mod soak;
pub(crate) mod strict;
pub(crate) mod tried;

use std::ffi::OsString;

use trunkline_fabric::Fabric as _;
use trunkline_ofi::{OfiConfig, OfiFabric};
use trunkline_sys::nccl_net::ResultCode;

use crate::net::{LINES, Net, load, logged};
use crate::run::{Scene, Setting, scenario};
use crate::{command, raw};

/// Native reliable endpoints over TCP: `net` in libfabric 1.17, later `tcp`.
pub(crate) const NATIVE: &str = "tcp";
/// Messages over connections, which every version has.
const LAYERED: &str = "tcp;ofi_rxm";
/// For processes of one host.
const SHM: &str = "shm";
/// An old provider over TCP. It is slow here, because its completions wait for its own threads.
const SOCKETS: &str = "sockets";
/// The variable that names a library to use instead of the system's.
const LIBRARY: &str = "TRUNKLINE_OFI_LIBRARY";

scenarios! {
    a_missing_libfabric_part_fails_init_and_is_named,
}

/// Whether the provider exists; if not, the test is a counted skip.
pub(crate) fn has(provider: &str) -> bool {
    let (provider, library) = (Some(provider.to_owned()), std::env::var_os(LIBRARY));
    let config = OfiConfig { provider, library, ..OfiConfig::default() };
    let found = OfiFabric::new(&config);
    if let Err(missing) = &found {
        let name = format!("the plugin over ofi:{}", config.provider.unwrap_or_default());
        trunkline_integration::skip_test(&name, "ofi", &missing.to_string());
    }
    found.is_ok_and(|fabric| !fabric.nics().is_empty())
}

/// The tested providers; an endpoint of the layered one takes 70 MB and much time.
fn providers() -> Vec<&'static str> {
    let full = std::env::var_os("TRUNKLINE_FULL").is_some();
    if full { vec![NATIVE, SHM, SOCKETS, LAYERED] } else { vec![NATIVE, SHM] }
}

/// The environment of the processes.
fn environment(provider: &str) -> Vec<(&'static str, OsString)> {
    let library = std::env::var_os(LIBRARY).map(|library| (LIBRARY, library));
    [("TRUNKLINE_FABRIC", format!("ofi:{provider}").into())].into_iter().chain(library).collect()
}

pub(crate) fn over(provider: &str, name: &'static str) -> Setting {
    let environment = environment(provider).into_iter();
    let setting = environment.fold(scenario(name), |setting, (name, value)| setting.env_os(name, value));
    // With these providers, `connect` makes a whole endpoint with its memory, which takes up to 50 ms (`shm`: 10).
    if provider == NATIVE { setting } else { setting.env("TRUNKLINE_TEST_EMULATED", 1) }
}

/// Scenarios in one process.
const ALONE: [&str; 5] = [
    "any_order_of_connect_and_accept",
    "every_message_size_between_threads",
    "grouped_receives_match_by_tag",
    "a_flush_has_nothing_to_wait_for",
    "comms_close_in_any_order",
];

/// More scenarios, for the provider that makes endpoints quickly.
const MORE: [&str; 9] = [
    "properties_stay",
    "one_thread_connects_to_itself",
    "one_listener_accepts_many",
    "stale_requests_are_overwritten",
    "sends_end_without_their_receiver",
    "requests_are_tested_in_any_order",
    "messages_pass_one_whose_receive_is_late",
    "a_range_registers_repeatedly",
    "registration_beside_traffic",
];

#[test]
fn the_contract_holds() {
    for provider in providers() {
        if !has(provider) {
            continue;
        }
        let more: &[&str] = if provider == NATIVE { &MORE } else { &[] };
        for &name in ALONE.iter().chain(more) {
            over(provider, name).alone();
        }
        over(provider, "two_processes_exchange_messages").two();
        over(provider, "a_forked_child_ends").two();
    }
}

#[test]
fn the_contract_holds_with_few_eager_credits_or_none() {
    if !has(NATIVE) {
        return;
    }
    for (setting, value) in
        [("TRUNKLINE_EAGER_MAX", "0"), ("TRUNKLINE_EAGER_CREDITS", "1"), ("TRUNKLINE_DEPTH", "64")]
    {
        for name in ["every_message_size_between_threads", "grouped_receives_match_by_tag"] {
            over(NATIVE, name).env(setting, value).alone();
        }
        over(NATIVE, "two_processes_exchange_messages").env(setting, value).two();
    }
}

#[test]
fn the_contract_holds_over_several_links_and_nics() {
    for provider in providers() {
        if !has(provider) {
            continue;
        }
        for name in ["every_message_size_between_threads", "grouped_receives_match_by_tag"] {
            over(provider, name).env("TRUNKLINE_LINKS_PER_RAIL", 4).alone();
            over(provider, name).env("TRUNKLINE_OFI_NICS", 2).env("TEST_FUSED", 2).alone();
        }
        let fused = over(provider, "two_processes_exchange_messages").env("TRUNKLINE_OFI_NICS", 4);
        fused.clone().env("TEST_FUSED", "4,4").two();
        fused.env("TEST_FUSED", "1,2").two();
    }
}

/// Messages that the provider matches with their receives, by tag.
#[test]
fn the_contract_holds_where_the_provider_pairs_messages() {
    if !has(LAYERED) {
        return;
    }
    let pairs = |name| over(LAYERED, name).env("TRUNKLINE_MATCH", "nic");
    let full = std::env::var_os("TRUNKLINE_FULL").is_some();
    let names = ["grouped_receives_match_by_tag", "every_message_size_between_threads"];
    for &name in if full { &ALONE[..] } else { &names[..] } {
        pairs(name).alone();
    }
    pairs("two_processes_exchange_messages").two();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let p2p = format!("p2p -b 8 -e 2M -f 64 -w 1 -i 2 --trace {}", trace.display());
    right(LAYERED, &p2p, &[("TRUNKLINE_MATCH", "nic")]);
    assert!(
        std::fs::read_to_string(trace).unwrap().contains("matched send"),
        "the provider matched no message"
    );
    right(LAYERED, "all_reduce -b 8 -e 256K -f 32 -w 1 -i 2", &[("TRUNKLINE_MATCH", "nic")]);
}

/// Runs a bench over a provider; every byte must be right.
#[track_caller]
fn right(provider: &str, args: &str, more: &[(&str, &str)]) {
    let own = environment(provider).into_iter().map(|(name, value)| (name.to_owned(), value));
    let more = more.iter().map(|&(name, value)| (name.to_owned(), value.into()));
    rights(args, &own.chain(more).collect::<Vec<_>>());
}

/// Runs the bench in an environment.
#[track_caller]
fn rights(args: &str, env: &[(String, OsString)]) {
    let plugin = trunkline_integration::plugin_path().unwrap();
    let args = format!("{args} --plugin {}", plugin.display());
    let text = |value: &'_ OsString| value.to_str().expect("text").to_owned();
    let env: Vec<(&str, String)> = env.iter().map(|(name, value)| (name.as_str(), text(value))).collect();
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let (success, rows, said) = command::bench(command::trunkline(), &args, &env);
    assert!(success && !rows.is_empty(), "{said}");
    assert!(rows.iter().all(|row| row["wrong"] == 0 && row["fabric"] == "ofi"), "{said}");
}

/// All benches over the native provider, and half of them over the other one; with `--full`, all over each.
#[test]
fn a_bench_has_no_wrong_byte() {
    let full = std::env::var_os("TRUNKLINE_FULL").is_some();
    let merged: &[_] = &[("TRUNKLINE_OFI_NICS", "2")];
    let shared: &[_] = &[("TRUNKLINE_QP_SHARING", "on"), ("TRUNKLINE_QP_GROUPS", "1")];
    let benches = [
        ("all_reduce -b 8 -e 1M -f 32 -w 1 -i 2", &[][..]),
        ("alltoallv -b 8 -e 1M -f 32 -w 1 -i 2", &[]),
        ("p2p -b 8 -e 2M -f 64 -w 1 -i 2 --merge", merged),
        ("reduce_scatter -b 8 -e 1M -f 32 -w 1 -i 2", &[]),
        ("sendrecv -b 8 -e 16M -f 128 -w 1 -i 2", &[]),
        ("p2p -b 8 -e 16M -f 128 -w 1 -i 2", &[]),
        ("all_reduce -b 8 -e 1M -f 32 -w 1 -i 2 --comms 2 --channels 2", shared),
        ("all_gather -n 3 -b 8 -e 64K -f 32 -w 1 -i 2", &[]),
        // More slices than immediates: the record behind them waits for the proof that they have arrived.
        ("p2p -b 1M -e 16M -f 16 -w 1 -i 2 --channels 2", shared),
    ];
    for provider in providers().into_iter().filter(|provider| has(provider)) {
        for (number, (bench, settings)) in benches.iter().enumerate() {
            if full || provider == NATIVE || number % 2 == 0 {
                right(provider, bench, settings);
            }
        }
    }
}

fn a_missing_libfabric_part_fails_init_and_is_named(scene: Scene) {
    let path = std::env::var_os("TRUNKLINE_TEST_PLUGIN").unwrap();
    let library = load(path.as_ref());
    let named = std::env::var("TEST_NAME").unwrap();
    for _ in 0..2 {
        let started = Net::init(raw::find(&library, scene.version).unwrap());
        assert_eq!(started.err(), Some(ResultCode::SYSTEM_ERROR));
    }
    assert!(logged(&named) >= 1, "no line of the log names {named}: {:?}", LINES.lock().unwrap());
}

#[test]
fn missing_parts_fail_init_and_are_named() {
    let of = |named: &str| {
        scenario("a_missing_libfabric_part_fails_init_and_is_named")
            .env("TEST_NAME", named)
            .env("TRUNKLINE_FABRIC", "ofi:tcp")
    };
    let nowhere = of("/no/such/libfabric.so.1 cannot be opened").env(LIBRARY, "/no/such/libfabric.so.1");
    nowhere.alone();
    if !has(NATIVE) {
        return;
    }
    let with_library = |setting: Setting| match std::env::var_os(LIBRARY) {
        Some(library) => setting.env_os(LIBRARY, library),
        None => setting,
    };
    with_library(of("has no domain eth99 here, but ")).env("TRUNKLINE_OFI_DOMAIN", "eth99").alone();
    let pigeon = with_library(of("libfabric has no usable provider carrier-pigeon here"));
    pigeon.env("TRUNKLINE_FABRIC", "ofi:carrier-pigeon").alone();
}

#[test]
fn connections_close_at_any_time() {
    // The layered provider does not survive that: `rxm` dereferences a null pointer when a connection is lost under traffic.
    if !has(NATIVE) {
        return;
    }
    over(NATIVE, "comms_close_with_work_in_flight").alone();
    over(NATIVE, "comms_close_with_work_in_flight").env("TRUNKLINE_OFI_NICS", 2).env("TEST_FUSED", 2).alone();
    over(NATIVE, "two_processes_close_at_any_time").two();
}
