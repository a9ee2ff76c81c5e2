//! The performance of a bare provider: tagged messages between two processes of this host, over one reliable endpoint each. The baseline of
//! `cargo xtask compare` for the cost of the rail over libfabric; it posts, waits and counts as `trunkline bench p2p` does.
//!
//! ```text
//! cargo run --release -p trunkline-ofi --example raw -- PROVIDER DOMAIN BYTES MESSAGES [each]
//! {"bytes":8,"half_us":4.10,"rate_mps":0.61}
//! cargo run --release -p trunkline-ofi --example raw -- PROVIDER DOMAIN BYTES MESSAGES rma
//! {"bytes":8,"put_us":9.10,"get_us":8.70,"put_gbs":0.002,"get_gbs":0.001}
//! ```
//!
//! With `each` as the last word, each direction has its own endpoints, as transports of one-way connections have.
//! Over TCP every second small message then costs its receiver an acknowledgement inside `recv`. A reply over the
//! same connection would have carried it.
//!
//! With `rma` it measures remote writes and reads, as `trunkline bench rma` does. It prints the medians of a placed
//! write and of a read, each waited for, and the throughput of streams of both with several in flight.
//!
//! `half_us` is the median of half round trips; `rate_mps` are millions of messages a second one way, 8 in flight.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a measurement that cannot continue stops")]

use std::ffi::CString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use trunkline_fabric::AccessRights;
use trunkline_mem::MemoryRange;
use trunkline_ofi::OfiLibrary;
use trunkline_ofi::typed::{
    CompletionFormat, EndpointPeer, MemoryDuty, MrEnabled, MrRequest, OfiDomain, OfiEndpoint, OfiHints,
    OfiInfo, OfiQueue, OpSlot, PayloadSource, PayloadTraffic, PostOptions, QueueRead, QueueWants, RKey,
    RemotePlace, SubmitOutcome, query_infos, register_memory,
};
use trunkline_sys::ofi::{caps, threading};

/// Messages in flight.
const WINDOW: usize = 8;
/// Receives that are posted.
const RECEIVES: u32 = 2 * WINDOW as u32;
/// The tag of all messages.
const TAG: u64 = 0x7a67;

struct End {
    endpoint: OfiEndpoint<PayloadTraffic>,
    /// The receiving endpoint, if it is a separate one.
    receiver: Option<OfiEndpoint<PayloadTraffic>>,
    queue: OfiQueue,
    mr: MrEnabled<PayloadTraffic>,
    /// Memory that the other end writes and reads, and the corresponding memory of the other end.
    open: MrEnabled<PayloadTraffic>,
    theirs: Option<RemotePlace<PayloadTraffic>>,
    peer: Option<EndpointPeer<PayloadTraffic>>,
    bytes: usize,
    inject: usize,
    /// Completed receives that have not been consumed.
    came: usize,
    /// Sends that the provider still has.
    out: usize,
}

/// The offer of a domain; a name stands for all versions' names of it, as `ofi:tcp` does.
fn offer(provider: &str, domain: &str) -> OfiInfo {
    let instead = std::env::var_os("TRUNKLINE_OFI_LIBRARY");
    let library = Arc::new(OfiLibrary::open(instead.as_deref()).unwrap());
    let names: &[&str] = if provider == "tcp" { &["tcp", "net"] } else { &[provider] };
    let wanted = caps::MSG | caps::TAGGED | caps::RMA;
    for name in names {
        let name = CString::new(*name).unwrap();
        let hints =
            OfiHints::new(&library, wanted).unwrap().with_provider(&name).with_threading(threading::SAFE);
        let found = query_infos(&hints, None).unwrap();
        let fits =
            |info: &OfiInfo| info.names()[0].as_bytes() == name.as_bytes() && info.names()[2] == domain;
        if let Some(info) = found.into_iter().find(fits) {
            return info;
        }
    }
    panic!("no domain {domain} of provider {provider}");
}

impl End {
    fn open(info: &OfiInfo, bytes: usize, each: bool) -> Self {
        let domain = OfiDomain::open(info).unwrap();
        let slots = RECEIVES + 2 * WINDOW as u32;
        let wants =
            QueueWants { entries: 1024, format: CompletionFormat::Data, sources: false, wait: false, slots };
        let queue = OfiQueue::open(&domain, &wants).unwrap();
        let endpoint = OfiEndpoint::open(info, &queue, &[]).unwrap();
        let receiver = each.then(|| OfiEndpoint::open(info, &queue, &[]).unwrap());
        let memory = MemoryRange::heap(bytes.max(128) * (RECEIVES as usize + WINDOW));
        memory.discard_pages();
        let mr = register_memory(
            &domain,
            &endpoint.mr_scope(),
            &MrRequest::for_host(&memory, MemoryDuty::Messages),
        )
        .unwrap();
        let open = MemoryRange::heap(bytes);
        open.discard_pages();
        let open = MrRequest::for_host(&open, MemoryDuty::User(AccessRights::READ_WRITE));
        let open = register_memory(&domain, &endpoint.mr_scope(), &open).unwrap();
        let inject = domain.provider_grant().sizes.inject;
        Self { endpoint, receiver, queue, mr, open, theirs: None, peer: None, bytes, inject, came: 0, out: 0 }
    }

    fn at(&self, index: u32) -> u64 {
        u64::from(index) * self.bytes.max(128) as u64
    }

    /// Posts until the provider accepts the operation.
    fn post(&mut self, mut what: impl FnMut(&mut Self) -> SubmitOutcome) {
        loop {
            match what(self) {
                SubmitOutcome::Taken => return,
                SubmitOutcome::Again => self.look(),
                SubmitOutcome::Refused(errno) => panic!("refused: {errno}"),
            }
        }
    }

    fn receive(&mut self, index: u32) {
        let (at, bytes) = (self.at(index), self.bytes as u64);
        self.post(|end| {
            let into = end.mr.local_slice(at, bytes).unwrap();
            let endpoint = end.receiver.as_mut().unwrap_or(&mut end.endpoint);
            endpoint.receive_tagged(None, into, TAG, 0, OpSlot(index), false)
        });
    }

    fn send(&mut self, index: u32) {
        let (at, bytes) = (self.at(RECEIVES + index), self.bytes);
        if bytes <= self.inject {
            let mut copy = [0; 4096];
            self.mr.memory().read(at, &mut copy[..bytes]).unwrap();
            return self.post(|end| end.endpoint.inject_tagged(end.peer.unwrap(), &copy[..bytes], TAG, None));
        }
        self.post(|end| {
            let from = PayloadSource::One(end.mr.local_slice(at, bytes as u64).unwrap());
            let slot = OpSlot(RECEIVES + index);
            end.endpoint.send_tagged(end.peer.unwrap(), from, TAG, None, slot, PostOptions::TOLD)
        });
        self.out += 1;
    }

    fn look(&mut self) {
        match self.queue.read_batch() {
            QueueRead::Entries(count) => {
                for index in 0..count {
                    let Some(OpSlot(slot)) = self.queue.batch_entry(index).and_then(|entry| entry.slot)
                    else {
                        continue;
                    };
                    if slot < RECEIVES {
                        self.came += 1;
                    } else {
                        self.out -= 1;
                    }
                }
            }
            QueueRead::Nothing => std::hint::spin_loop(),
            QueueRead::ErrorWaits => panic!("{:?}", self.queue.read_error()),
            QueueRead::Broken(errno) => panic!("{errno}"),
        }
    }

    fn until(&mut self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            self.look();
        }
    }

    /// Begins a remote write or read.
    fn move_remote(&mut self, writes: bool, placed: bool) {
        let bytes = self.bytes;
        let mut copy = [0; 4096];
        let inline = writes && bytes <= self.inject;
        if inline {
            self.open.memory().read(0, &mut copy[..bytes]).unwrap();
        }
        self.post(|end| {
            let (peer, theirs, slot) = (end.peer.unwrap(), end.theirs.unwrap(), OpSlot(RECEIVES));
            let local = end.open.local_slice(0, bytes as u64).unwrap();
            let how = PostOptions { placed, ..PostOptions::TOLD };
            match writes {
                true if inline => {
                    end.endpoint.write(peer, PayloadSource::Inline(&copy[..bytes]), theirs, None, slot, how)
                }
                true => end.endpoint.write(peer, PayloadSource::One(local), theirs, None, slot, how),
                false => end.endpoint.read(peer, local, theirs, slot, how),
            }
        });
        self.out += 1;
    }

    /// Returns the median of single operations in microseconds, and the throughput of a stream in 1e9 bytes per
    /// second.
    fn remote(&mut self, writes: bool, count: usize) -> (f64, f64) {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let start = Instant::now();
            self.move_remote(writes, true);
            self.until(|end| end.out == 0);
            times.push(start.elapsed().as_nanos() as u64);
        }
        times.sort_unstable();
        let start = Instant::now();
        for at in 0..count {
            // The last one completes after all earlier ones are placed.
            self.move_remote(writes, at + 1 == count);
            self.until(|end| end.out < WINDOW);
        }
        self.until(|end| end.out == 0);
        let rate = (self.bytes * count) as f64 / start.elapsed().as_secs_f64() / 1e9;
        (times[count / 2] as f64 / 1e3, rate)
    }

    /// Measures writes and reads, which the other end serves until it receives a message.
    fn remotes(&mut self, first: bool, count: usize) {
        if first {
            self.remote(true, (count / 10).max(16));
            let (put, put_gbs) = self.remote(true, count);
            self.remote(false, (count / 10).max(16));
            let (get, get_gbs) = self.remote(false, count);
            self.send(0);
            self.until(|end| end.out == 0);
            let times = format!("\"put_us\":{put:.3},\"get_us\":{get:.3}");
            println!(
                "{{\"bytes\":{},{times},\"put_gbs\":{put_gbs:.4},\"get_gbs\":{get_gbs:.4}}}",
                self.bytes
            );
        } else {
            self.receive(0);
            self.until(|end| end.came == 1);
            self.came = 0;
        }
    }

    /// Measures half round trips in nanoseconds; the next receive is always posted before the reply is sent.
    fn latency(&mut self, first: bool, messages: usize) -> Vec<u64> {
        let mut times = Vec::with_capacity(messages);
        self.receive(0);
        for round in 0..messages {
            let start = Instant::now();
            if first {
                self.send(0);
            }
            self.until(|end| end.came > 0 && end.out == 0);
            self.came = 0;
            times.push(start.elapsed().as_nanos() as u64 / 2);
            if round + 1 < messages {
                self.receive(0);
            }
            if !first {
                self.send(0);
                self.until(|end| end.out == 0);
            }
        }
        times
    }

    /// Sends messages one way, with a reply at the end.
    fn stream(&mut self, first: bool, messages: usize) {
        if first {
            self.receive(0);
            for index in 0..messages {
                self.send((index % WINDOW) as u32);
                self.until(|end| end.out < WINDOW);
            }
            self.until(|end| end.came == 1 && end.out == 0);
        } else {
            let posted = RECEIVES.min(messages as u32);
            (0..posted).for_each(|index| self.receive(index));
            let (mut again, mut done) = (messages - posted as usize, 0);
            while done < messages {
                self.look();
                while self.came > 0 {
                    self.came -= 1;
                    if again > 0 {
                        self.receive(done as u32 % RECEIVES);
                        again -= 1;
                    }
                    done += 1;
                }
            }
            self.send(0);
            self.until(|end| end.out == 0);
        }
        self.came = 0;
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.trim().len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let [_, provider, domain, bytes, messages, rest @ ..] = args.as_slice() else {
        eprintln!("usage: raw PROVIDER DOMAIN BYTES MESSAGES [each | rma]");
        std::process::exit(2);
    };
    let (bytes, messages): (usize, usize) = (bytes.parse().unwrap(), messages.parse().unwrap());
    let first = rest.last().is_none_or(|word| word != "second");
    let each = rest.first().is_some_and(|word| word == "each");
    let mut end = End::open(&offer(provider, domain), bytes, each);
    let remote = rest.first().is_some_and(|word| word == "rma");
    let name = hex(&end.receiver.as_ref().unwrap_or(&end.endpoint).local_name().unwrap());
    let name = format!("{name} {} {}", end.open.key().unwrap().number(), end.open.remote_base());
    let mut line = String::new();
    let mut child = None;
    if first {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(&args[1..]).arg("second").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut peer = command.spawn().unwrap();
        writeln!(peer.stdin.as_mut().unwrap(), "{name}").unwrap();
        BufReader::new(peer.stdout.take().unwrap()).read_line(&mut line).unwrap();
        child = Some(peer);
    } else {
        println!("{name}");
        std::io::stdin().read_line(&mut line).unwrap();
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    end.peer = Some(end.endpoint.insert(&unhex(words[0])).unwrap());
    end.theirs = Some(RemotePlace::new(RKey::new(words[1].parse().unwrap()), words[2].parse().unwrap()));
    if remote {
        end.latency(first, 16);
        end.remotes(first, messages);
        // Synchronizes, so that no end closes memory that the other still reads.
        end.latency(first, 1);
        child.map(|mut peer| peer.wait().unwrap());
        return;
    }
    let warm_up = (messages / 10).max(16);
    end.latency(first, warm_up);
    let mut times = end.latency(first, messages);
    end.stream(first, warm_up);
    // Synchronizes, so that both ends begin together.
    end.latency(first, 1);
    let start = Instant::now();
    end.stream(first, messages);
    let rate = messages as f64 / start.elapsed().as_secs_f64() / 1e6;
    // Synchronizes, so that no end closes memory that the other still reads.
    end.latency(first, 1);
    if let Some(mut peer) = child {
        times.sort_unstable();
        let half = times[times.len() / 2] as f64 / 1e3;
        println!("{{\"bytes\":{bytes},\"half_us\":{half:.3},\"rate_mps\":{rate:.4}}}");
        peer.wait().unwrap();
    }
}
