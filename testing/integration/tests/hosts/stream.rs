//! Scenarios of two processes over several rails, on two hosts or one: streams of messages in one or both directions,
//! over one or several connections. A stream ends when a file exists, or when all requests fail.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use trunkline_proto::wire::status::{ControlStreams, StatusSnapshot};
use trunkline_sys::nccl_net::ResultCode;

use crate::contract::arguments::text;
use crate::contract::messages::between;
use crate::net::{Buf, Called, Comm, LIMIT, Mr, Net, Piece, Request, logged, until};
use crate::run::Scene;
use crate::sharing::status;

scenarios! {
    a_stream_arrives_whole,
    a_stream_fails_once,
}

/// Lengths of messages, in turn, unless one is set for all: eager, of one piece, and of many.
const LENGTHS: [usize; 9] = [1, 3000, 65_537, 1 << 20, 8192, 300_001, 70_000, 17, (2 << 20) + 5];
/// Outstanding requests per direction.
const WINDOW: usize = 8;
/// Shortest and longest pause of a process that has nothing to do. Each pause has twice the length of the one before it.
const IDLE: Duration = Duration::from_micros(20);
const IDLE_MAX: Duration = Duration::from_micros(320);
/// Interval of the checks for the file.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Interval of the reports of links and connections that carry.
const SAY_EVERY: Duration = Duration::from_millis(50);

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// The carriers of a stream at one end: links of all connections, and the connections of its control streams.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Carrying {
    pub(crate) links: u32,
    pub(crate) control: ControlStreams,
}

impl Carrying {
    /// The values from the status page of this process.
    fn now() -> Self {
        let StatusSnapshot { head, rows } = status();
        let comms = rows.into_iter().filter_map(|row| row.comm);
        let links = comms.map(|comm| comm.links.carrying().count_ones()).sum();
        Self { links, control: head.control }
    }

    /// The file in which a process reports them.
    fn file(folder: &Path, role: usize) -> PathBuf {
        folder.join(format!("carrying{role}"))
    }

    fn write(self, path: &Path) {
        let text = format!("{} {}", self.links, self.control.to_word());
        std::fs::write(path, text).expect("a file");
    }

    /// The last report of a process; `None` if it is missing or incomplete.
    pub(crate) fn of(folder: &Path, role: usize) -> Option<Self> {
        let text = std::fs::read_to_string(Self::file(folder, role)).ok()?;
        let (links, word) = text.split_once(' ')?;
        Some(Self { links: links.parse().ok()?, control: ControlStreams::from_word(word.parse().ok()?) })
    }

    /// Whether each control stream has `of_each` connections.
    pub(crate) fn has_connections(&self, of_each: u16) -> bool {
        let ControlStreams { streams, fewest, connections } = self.control;
        streams > 0 && fewest == of_each && connections == u32::from(streams) * u32::from(of_each)
    }
}

fn millis(name: &str) -> Option<Duration> {
    number(name).map(|ms| Duration::from_millis(ms as u64))
}

/// Starts the plugin, with comms on the number of rails that `TEST_RAILS` sets for this process, from NIC `TEST_FIRST`
/// on.
fn start(scene: &Scene) -> Net {
    let net = Net::start(scene.version);
    if let Ok(names) = std::env::var("TEST_NICS") {
        return on_named(net, names.split(',').nth(scene.role).expect("NICs for each"));
    }
    let asked = std::env::var("TEST_RAILS").expect("a number of rails for each");
    let count: i32 = asked.split(',').nth(scene.role).expect("one for each").parse().expect("a number");
    let first = number("TEST_FIRST").unwrap_or(0) as i32;
    assert!(net.devices() >= first + count, "the scenario needs a NIC for each cable");
    if count == 1 {
        return net.on(first);
    }
    let members: Vec<i32> = (first..first + count).collect();
    let dev = net.make_v_device(&members).expect("a version that fuses").expect("makeVDevice");
    net.on(dev)
}

/// Puts comms on the NICs with these names.
fn on_named(net: Net, names: &str) -> Net {
    let found = |name: &str| {
        let named = |&dev: &i32| text(net.props(dev).expect("properties").name) == name;
        (0..net.devices()).find(named).unwrap_or_else(|| panic!("no NIC {name}"))
    };
    let members: Vec<i32> = names.split('+').map(found).collect();
    if let [only] = members[..] {
        return net.on(only);
    }
    let dev = net.make_v_device(&members).expect("a version that fuses").expect("makeVDevice");
    net.on(dev)
}

/// A buffer, and its outstanding request.
struct Slot {
    buf: Buf,
    mr: Mr,
    request: Option<Request>,
}

/// One direction of a stream at one end. Message `n` has pattern `n`, which differs between streams. Empty messages follow the last one.
struct Way {
    comm: Comm,
    stream: usize,
    sends: bool,
    length: Option<usize>,
    slots: Vec<Slot>,
    /// Number of the next message to begin, and of the next to end.
    begun: usize,
    ended: usize,
    /// Whether the next message is in its buffer.
    is_filled: bool,
    /// Number of the first empty message.
    last: Option<usize>,
    bytes: usize,
    /// Arrival of the last message, and the longest time between two.
    came: Instant,
    pause: Duration,
    /// Pause before each message.
    rest: Duration,
}

impl Way {
    fn new(net: &Net, stream: usize, comm: Comm, sends: bool) -> Self {
        let length = number("TEST_LENGTH");
        let longest = length.unwrap_or(LENGTHS[8]);
        let slot = |_| {
            let buf = Buf::new(longest);
            Slot { mr: net.reg_buf(comm, &buf), buf, request: None }
        };
        Self {
            comm,
            stream,
            sends,
            length,
            slots: (0..number("TEST_WINDOW").unwrap_or(WINDOW)).map(slot).collect(),
            begun: 0,
            ended: 0,
            is_filled: false,
            last: None,
            bytes: 0,
            came: Instant::now(),
            pause: Duration::ZERO,
            rest: Duration::from_micros(number("TEST_REST_US").unwrap_or(0) as u64),
        }
    }

    fn length(&self, number: usize) -> usize {
        match self.last {
            Some(last) if number >= last => 0,
            _ => self.length.unwrap_or(LENGTHS[number % LENGTHS.len()]),
        }
    }

    fn pattern(&self, number: usize) -> usize {
        number + 97 * self.stream
    }

    /// Whether all messages, the empty ones included, have ended.
    fn is_over(&self) -> bool {
        self.last.is_some_and(|last| self.ended == last + self.slots.len())
    }

    /// Completes finished requests in order, and starts new ones; returns whether any request started or ended.
    fn step(&mut self, net: &Net) -> Called<bool> {
        let count = self.slots.len();
        let before = (self.begun, self.ended);
        while self.ended < self.begun {
            let slot = &mut self.slots[self.ended % count];
            let Some(request) = slot.request else { break };
            let tested = net.try_test(request);
            if tested != Ok(None) {
                slot.request = None;
            }
            let Some(sizes) = tested? else { break };
            self.on_end(sizes[0]);
        }
        let until = self.last.map_or(usize::MAX, |last| last + count);
        while self.begun < until && self.begun - self.ended < count {
            if self.sends && self.came.elapsed() < self.rest {
                break;
            }
            let Some(request) = self.begin(net)? else { break };
            self.slots[self.begun % count].request = Some(request);
            self.begun += 1;
            self.is_filled = false;
        }
        Ok(before != (self.begun, self.ended))
    }

    fn begin(&mut self, net: &Net) -> Called<Option<Request>> {
        let (number, len) = (self.begun, self.length(self.begun));
        let slot = &self.slots[number % self.slots.len()];
        let piece = Piece { addr: slot.buf.addr(), len, tag: 7, mr: slot.mr };
        if self.sends {
            if !self.is_filled {
                slot.buf.fill(0..len, self.pattern(number));
                self.is_filled = true;
            }
            return net.try_send(self.comm, piece, 0);
        }
        // Every second receive is longer than its message.
        let len = if number % 2 == 0 { len } else { slot.buf.len() };
        net.try_recv(self.comm, &[Piece { len, ..piece }], 0)
    }

    fn on_end(&mut self, size: i32) {
        let number = self.ended;
        self.ended += 1;
        if !self.sends {
            if size == 0 {
                self.last.get_or_insert(number);
            }
            let len = self.length(number);
            assert_eq!(size, len as i32, "size of message {number}");
            self.slots[number % self.slots.len()].buf.check(0..len, self.pattern(number));
            self.bytes += len;
        }
        if number > 0 {
            self.pause = self.pause.max(self.came.elapsed());
        }
        self.came = Instant::now();
    }

    /// Waits until every outstanding request has failed or completed; returns the number of failures.
    fn fail(&mut self, net: &Net) -> usize {
        let mut failed = 0;
        for request in self.slots.iter_mut().filter_map(|slot| slot.request.take()) {
            match until("an end", || net.try_test(request).transpose()) {
                Ok(_) => {}
                Err(code) => {
                    assert_eq!(code, ResultCode::REMOTE_ERROR);
                    failed += 1;
                }
            }
            let again = net.try_test(request);
            assert!(
                matches!(again, Err(code) if code != ResultCode::REMOTE_ERROR),
                "a second end: {again:?}"
            );
        }
        failed
    }

    /// Starts requests until one is refused. The peer may still be alive and count arrivals, so no number is used twice.
    fn wait_for_refusal(&mut self, net: &Net) -> ResultCode {
        until("a refusal", || match self.begin(net) {
            Err(code) => Some(code),
            Ok(None) => None,
            Ok(Some(request)) => {
                self.begun += 1;
                self.is_filled = false;
                // It may succeed: the other end detects the cut later than this one.
                _ = until("an end", || net.try_test(request).transpose());
                None
            }
        })
    }
}

/// All directions at this end, and the file that ends them.
struct Stream {
    net: Net,
    ways: Vec<Way>,
    comms: Vec<(Comm, Comm)>,
    file: PathBuf,
    /// The folder for reports of the carriers, if a test reads them.
    carrying: Option<PathBuf>,
    looked: Instant,
    said: Instant,
    started: Instant,
    /// The next pause.
    idle: Duration,
}

impl Stream {
    fn new(scene: &mut Scene) -> Self {
        let net = start(scene);
        let comms: Vec<_> = (0..number("TEST_STREAMS").unwrap_or(1)).map(|_| between(&net, scene)).collect();
        let both = std::env::var("TEST_WAYS").is_ok_and(|ways| ways == "both");
        let wanted = |sends: bool| both || sends == (scene.role == 0);
        let ends = |(stream, &(send, recv))| [(stream, send, true), (stream, recv, false)];
        let ways = comms.iter().enumerate().flat_map(ends).filter(|&(_, _, sends)| wanted(sends));
        let ways = ways.map(|(stream, comm, sends)| Way::new(&net, stream, comm, sends)).collect();
        if let Some(groups) = number("TEST_GROUPS") {
            let rides = status().rows.into_iter().filter_map(|row| row.comm?.ride?.record);
            assert_eq!(rides.collect::<BTreeSet<_>>().len(), groups, "groups of both directions");
        }
        let file = PathBuf::from(std::env::var_os("TEST_FILE").expect("TEST_FILE names a file"));
        let folder = file.parent().expect("its folder");
        let carrying = number("TEST_SAYS").map(|_| Carrying::file(folder, scene.role));
        scene.meet();
        let now = Instant::now();
        Self { net, ways, comms, file, carrying, looked: now, said: now, started: now, idle: IDLE }
    }

    /// Steps each direction. If nothing changed, it sleeps so that other processes can use the processor.
    fn step(&mut self) -> Called<()> {
        let mut moved = false;
        for way in &mut self.ways {
            moved |= way.step(&self.net)?;
        }
        if moved {
            self.idle = IDLE;
        } else {
            std::thread::sleep(self.idle);
            self.idle = (2 * self.idle).min(IDLE_MAX);
        }
        Ok(())
    }

    /// Checks at intervals whether the file exists.
    fn is_told(&mut self) -> bool {
        if self.looked.elapsed() < LOOK_EVERY {
            return false;
        }
        self.looked = Instant::now();
        if let Some(path) = self.carrying.as_ref().filter(|_| self.said.elapsed() >= SAY_EVERY) {
            self.said = Instant::now();
            Carrying::now().write(path);
        }
        self.file.exists()
    }

    fn close(&self) {
        for &(send, recv) in &self.comms {
            self.net.close_send(send).unwrap();
            self.net.close_recv(recv).unwrap();
        }
        if let Some(finalized) = self.net.finalize() {
            finalized.unwrap();
        }
    }
}

/// Every byte of every message arrives, in order and once; no pause is longer than `TEST_PAUSE_MS`, and at least
/// `TEST_SPEED` megabytes per second arrive.
fn a_stream_arrives_whole(mut scene: Scene) {
    let mut stream = Stream::new(&mut scene);
    let mut told = None;
    while !stream.ways.iter().all(Way::is_over) {
        stream.step().expect("nothing fails");
        if told.is_none() && stream.is_told() {
            told = Some(Instant::now());
            for way in stream.ways.iter_mut().filter(|way| way.sends) {
                way.last = Some(way.begun + usize::from(way.is_filled));
            }
        }
        assert!(told.is_none_or(|told| told.elapsed() < LIMIT), "no end");
    }
    let secs = stream.started.elapsed().as_secs_f64();
    for way in &stream.ways {
        let count = way.last.unwrap();
        if way.sends {
            scene.say(&count.to_le_bytes());
            continue;
        }
        let speed = way.bytes as f64 / 1e6 / secs;
        println!("figure: {count} messages, {speed:.1} MB/s, longest pause {:?}", way.pause);
        let most = millis("TEST_PAUSE_MS").unwrap_or(LIMIT);
        assert!(way.pause < most, "{:?} without a message", way.pause);
        let least = number("TEST_SPEED").unwrap_or(0) as f64;
        assert!(speed >= least, "{speed} MB/s");
    }
    for way in stream.ways.iter().filter(|way| !way.sends) {
        assert_eq!(
            scene.hear(),
            way.last.unwrap().to_le_bytes(),
            "the number of received messages differs from the number sent"
        );
    }
    scene.meet();
    stream.close();
    scene.meet();
}

/// Nothing fails before the file exists; within `TEST_LIMIT_MS` after that, every request has ended.
fn a_stream_fails_once(mut scene: Scene) {
    let mut stream = Stream::new(&mut scene);
    let limit = millis("TEST_LIMIT_MS").expect("a limit");
    let (mut told, mut failed) = (None::<Instant>, 0);
    loop {
        let stepped = stream.step();
        if told.is_none() && stream.is_told() {
            told = Some(Instant::now());
        }
        match stepped {
            Ok(()) => {
                assert!(told.is_none_or(|told| told.elapsed() < limit), "no error {limit:?} after the cut")
            }
            Err(code) => {
                assert_eq!(code, ResultCode::REMOTE_ERROR);
                break;
            }
        }
    }
    let first = told.expect("an error before the cut").elapsed();
    for way in &mut stream.ways {
        assert!(way.ended > 0, "nothing arrived before");
        failed += way.fail(&stream.net);
        // New requests fail too.
        assert_eq!(way.wait_for_refusal(&stream.net), ResultCode::REMOTE_ERROR);
    }
    let all = told.expect("a cut").elapsed();
    println!("figure: {failed} requests failed, the first {first:?} after the cut, the last {all:?}");
    assert!(all < limit, "{all:?} after the cut");
    // All requests of one side may succeed: messages that arrived before the peer was found dead stay completed.
    scene.say(&failed.to_le_bytes());
    let theirs = usize::from_le_bytes(scene.hear().try_into().expect("a number"));
    assert!(failed + theirs > 1, "no request was in flight");
    if let Ok(names) = std::env::var("TEST_NICS") {
        let name = names.split(',').nth(scene.role).expect("a NIC for each");
        assert!(logged(&format!("over {name} failed")) > 0, "no line names {name}");
    }
    scene.meet();
    stream.close();
    scene.meet();
}
