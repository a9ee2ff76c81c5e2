//! `trunkline top` over engines of this process and of processes that it starts: counters, rows, refused pages, and
//! processes that end.

#![expect(clippy::expect_used, reason = "a failed set-up ends the test")]

#[path = "top/groups.rs"]
mod groups;

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags};
use serde_json::Value;
use trunkline_engine::host::{UnixHost, UnixOob};
use trunkline_engine::{CommId, CommNics, Engine, EngineParams, MrId, RecvBuf};
use trunkline_fabric::{Host, HostPage, LogLevel};
use trunkline_mem::MemoryRange;
use trunkline_proto::time;
use trunkline_proto::wire::status::{NAME, VERSION};
use trunkline_softnic::{SoftConfig, SoftFabric};

const LIMIT: Duration = Duration::from_secs(60);

/// The variable that makes this program a process for `top` to show.
const ROLE: &str = "TRUNKLINE_TEST_ROLE";

type Running<H = UnixHost> = Engine<SoftFabric, H>;

fn engine_over<H: Host>(host: H, params: EngineParams) -> Running<H> {
    let fabric = SoftFabric::new(SoftConfig::default()).expect("the software NIC");
    Engine::new(fabric, host, params).expect("an engine")
}

fn engine() -> Running {
    engine_over(UnixHost::new(|_, _| {}), EngineParams::default())
}

fn top(args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command.arg("top").args(args.split_whitespace()).stdin(Stdio::null());
    command.output().expect("it runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(args: &str) -> Value {
    let output = top(&format!("--once --json {args}"));
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn hex(engine: &Running<impl Host>) -> String {
    engine.process_id().0.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The row of an engine of this process.
fn shown(engine: &Running) -> Value {
    let report = json(&format!("--comms --pid {}", std::process::id()));
    of(&report, &hex(engine)).expect("it is shown")
}

fn of(report: &Value, process: &str) -> Option<Value> {
    let processes = report["processes"].as_array().expect("a list");
    let mut same = processes.iter().filter(|row| row["process"] == process);
    let found = same.next().cloned();
    assert!(same.next().is_none(), "a process is shown once: {report}");
    found
}

#[track_caller]
fn counted(row: &Value, wanted: &[(&str, u64)]) {
    for (name, value) in wanted {
        assert_eq!(row["counters"][name], *value, "{name} in {row}");
    }
}

#[track_caller]
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "waited too long for {what}");
        std::thread::yield_now();
    }
}

/// A comm from one engine to the other, and a region of `bytes` at each end.
struct Pair {
    send: (CommId, MrId),
    recv: (CommId, MrId),
}

fn connect(from: &Running, to: &Running, bytes: usize) -> Pair {
    connect_over(0.into(), from, to, bytes)
}

fn connect_over(nics: CommNics, from: &Running, to: &Running, bytes: usize) -> Pair {
    let (listen, mut handle) = to.listen(nics).expect("a listener");
    let (mut send, mut recv) = (None, None);
    until("a connection", || {
        send = send.or_else(|| from.connect(nics, &mut handle).expect("connect"));
        recv = recv.or_else(|| to.accept(listen).expect("accept"));
        send.zip(recv).map(|_| ())
    });
    to.close_listen(listen).expect("a listener");
    let region = |engine: &Running, comm| engine.register(comm, MemoryRange::heap(bytes)).expect("a region");
    let (send, recv) = (send.expect("connected"), recv.expect("accepted"));
    Pair { send: (send, region(from, send)), recv: (recv, region(to, recv)) }
}

/// One message for each length, into the buffers of one receive.
fn message(from: &Running, to: &Running, pair: &Pair, lens: &[u64]) {
    let ((send, send_mr), (recv, mr)) = (pair.send, pair.recv);
    let tagged = || lens.iter().enumerate().map(|(tag, &len)| (tag as u32, len));
    let buffers: Vec<RecvBuf> = tagged().map(|(tag, len)| RecvBuf { mr, offset: 0, len, tag }).collect();
    let receive = until("a receive", || to.irecv(recv, &buffers).expect("irecv"));
    let mut received = false;
    // A request is tested until it is done, and never after that.
    let mut look = || {
        received = received || to.test(receive, &mut [0; 8]).expect("a receive");
        received.then_some(())
    };
    for (tag, len) in tagged() {
        let sent = until("a send", || from.isend(send, send_mr, 0, len, tag).expect("isend"));
        until("its end", || {
            look();
            from.test(sent, &mut [0; 8]).expect("a send").then_some(())
        });
    }
    until("its arrival", look);
}

/// The links that a process shows of its first comm, as text.
fn links_of(engine: &Running) -> String {
    let comm = &shown(engine)["comms"][0];
    let links = comm["links"].as_array().expect("a list").iter();
    let links = links.map(|link| format!("{} {}", link["nic"], link["carries"])).collect::<Vec<_>>();
    format!("{}: {}", comm["nic"], links.join(", ")).replace('"', "")
}

#[test]
fn queues_in_use_are_shown_as_they_change() {
    let config = SoftConfig { nics: 2, max_qp: 64, max_mr: 1000, ..SoftConfig::default() };
    let fabric = SoftFabric::new(config).expect("the software NIC");
    let engine = Engine::new(fabric, UnixHost::new(|_, _| {}), EngineParams::default()).expect("an engine");
    let used = || {
        let row = shown(&engine)["nic_usage"][1].clone();
        assert_eq!(
            (&row["nic"], &row["queue_pairs_max"], &row["regions_max"]),
            (&"soft1".into(), &64.into(), &1000.into())
        );
        ["queue_pairs", "completion_queues", "regions"].map(|name| row[name].as_u64().expect("a number"))
    };
    assert_eq!(used(), [0; 3]);
    let nics = || CommNics::from(1);
    let first = connect_over(nics(), &engine, &engine, 64);
    let [pairs, queues, regions] = used();
    // Two ends, each with the caller's region and some of the engine's.
    assert_eq!((pairs, queues), (2, 2));
    assert!(regions > 2);
    let second = connect_over(nics(), &engine, &engine, 64);
    assert_eq!(used(), [4, 4, 2 * regions]);
    let more = engine.register(second.send.0, MemoryRange::heap(8)).expect("a region");
    assert_eq!(used(), [4, 4, 2 * regions + 1]);
    engine.deregister(second.send.0, more).expect("its end");
    assert_eq!(used(), [4, 4, 2 * regions]);
    let line = stdout(&top(&format!("--pid {}", std::process::id())));
    assert!(line.contains("4/64"), "{line}");
    let text = stdout(&top(&format!("--prometheus --pid {}", std::process::id())));
    let wanted =
        |line: &str| line.starts_with("trunkline_nic_queue_pairs{") && line.ends_with("nic=\"soft1\"} 4");
    assert!(text.lines().any(wanted), "{text}");
    for pair in [first, second] {
        engine.close(pair.send.0).expect("a comm");
        engine.close(pair.recv.0).expect("a comm");
    }
    until("closed lanes to end", || {
        engine.progress_all();
        (used() == [0; 3]).then_some(())
    });
}

#[test]
fn each_link_is_shown_with_nic_and_state() {
    let config = || SoftConfig { nics: 3, ..SoftConfig::default() };
    let engine = || {
        let fabric = SoftFabric::new(config()).expect("the software NIC");
        Engine::new(fabric, UnixHost::new(|_, _| {}), EngineParams::default()).expect("an engine")
    };
    let (a, b) = (engine(), engine());
    let nics = CommNics::new(&[2, 0]).expect("two NICs");
    let pair = connect_over(nics, &a, &b, 64);
    // The second link is made afterwards.
    assert_eq!(links_of(&a), "soft2+soft0!: soft2 true, soft0 false");
    let both = |engine: &Running, comm| !engine.carrying_links(comm).expect("a comm").contains(&false);
    until("the second link", || {
        message(&a, &b, &pair, &[8]);
        (both(&a, pair.send.0) && both(&b, pair.recv.0)).then_some(())
    });
    for row in [&a, &b] {
        assert_eq!(links_of(row), "soft2+soft0: soft2 true, soft0 true");
        counted(&shown(row), &[("links_taken", 1), ("links_left", 0)]);
        let used = &shown(row)["nic_usage"];
        assert_eq!([0, 1, 2].map(|nic| used[nic]["queue_pairs"].as_u64()), [Some(1), Some(0), Some(1)]);
    }
    // One whose peer dies has none.
    drop(b);
    until("the end of the links", || {
        let _ = a.isend(pair.send.0, pair.send.1, 0, 8, 0);
        (a.carrying_links(pair.send.0).expect("a comm") == [false, false]).then_some(())
    });
    let lines = stdout(&top(&format!("--once --comms --pid {}", std::process::id())));
    assert!(lines.contains("soft2"), "{lines}");
}

#[test]
fn counters_include_closed_comms_once() {
    let (a, b) = (engine(), engine());
    let pair = connect(&a, &b, 2 << 20);
    for _ in 0..10 {
        message(&a, &b, &pair, &[8]);
    }
    message(&a, &b, &pair, &[2 << 20]);
    message(&a, &b, &pair, &[0]);
    message(&a, &b, &pair, &[100, 5000, 7]);
    let (messages, bytes) = (10 + 1 + 1 + 3, 80 + (2 << 20) + 5107);
    let (sender, receiver) = (shown(&a), shown(&b));
    let sent = [("messages_sent", messages), ("bytes_sent", bytes), ("messages_received", 0)];
    let received = [("messages_received", messages), ("bytes_received", bytes), ("bytes_sent", 0)];
    let calm = [("messages_pending", 0), ("messages_failed", 0), ("comms_opened", 1), ("comms_closed", 0)];
    for (row, own) in [(&sender, &sent), (&receiver, &received)] {
        counted(row, own);
        counted(row, &calm);
        assert_eq!((&row["pid"], &row["fabric"]), (&std::process::id().into(), &"soft".into()));
        assert_eq!((&row["nics"][0], &row["comms_open"]), (&"soft0".into(), &1.into()));
    }
    let comm = &sender["comms"][0];
    assert_eq!(
        (&comm["direction"], &comm["state"], &comm["nic"]),
        (&"send".into(), &"open".into(), &"soft0".into())
    );
    assert_eq!((&comm["messages"], &comm["bytes"]), (&messages.into(), &bytes.into()));
    assert_eq!((&comm["peer"], &comm["peer_pid"]), (&hex(&b).into(), &std::process::id().into()));
    assert_eq!(receiver["comms"][0]["direction"], "recv");
    // The totals stay when the comm closes, and the next comm begins at zero.
    a.close(pair.send.0).expect("a comm");
    b.close(pair.recv.0).expect("a comm");
    let closed = shown(&a);
    counted(&closed, &sent);
    counted(&closed, &[("comms_closed", 1)]);
    assert_eq!((&closed["comms_open"], &closed["comms"][0]["state"]), (&0.into(), &"closed".into()));
    let pair = connect(&a, &b, 64);
    message(&a, &b, &pair, &[64]);
    counted(&shown(&a), &[("messages_sent", messages + 1), ("bytes_sent", bytes + 64), ("comms_opened", 2)]);
    counted(&shown(&b), &[("messages_received", messages + 1), ("bytes_received", bytes + 64)]);
    let second = &shown(&a)["comms"][1];
    assert_eq!((&second["messages"], &second["bytes"]), (&1.into(), &64.into()));
}

#[test]
fn waiting_and_failed_messages_are_shown() {
    let (a, b) = (engine(), engine());
    let pair = connect(&a, &b, 1 << 20);
    let buffer = RecvBuf { mr: pair.recv.1, offset: 0, len: 64, tag: 0 };
    let receive = until("a receive", || b.irecv(pair.recv.0, &[buffer]).expect("irecv"));
    assert_eq!(shown(&b)["comms"][0]["pending"], 1);
    // Too long to be sent before the receiver has posted its receive.
    let (comm, mr) = pair.send;
    let long = || a.isend(comm, mr, 0, 1 << 20, 9).expect("isend");
    let again = (0..1000).filter(|_| long().is_none()).count() as u64;
    assert_eq!(again, 1000, "no receive has tag 9");
    counted(&shown(&a), &[("calls_again", 1000), ("messages_pending", 0), ("messages_sent", 0)]);
    a.close(comm).expect("a comm");
    let failed = until("an error", || b.test(receive, &mut [0; 8]).err());
    assert!(failed.to_string().contains("closed its end"), "{failed}");
    let row = shown(&b);
    counted(&row, &[("messages_pending", 0), ("messages_failed", 1), ("requests_failed", 1)]);
    assert_eq!(row["last_fault"], "peer closed");
    let comm = &row["comms"][0];
    assert_eq!(
        (&comm["state"], &comm["fault"], &comm["failed"]),
        (&"failed".into(), &"peer closed".into(), &1.into())
    );
    let text = stdout(&top(&format!("--pid {}", std::process::id())));
    assert!(text.contains("peer closed"), "{text}");
}

/// A process for `top` to show, until it is killed.
struct Actor {
    child: Child,
    /// The line that it printed when it was ready.
    said: String,
}

impl Actor {
    fn start(role: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "plays_its_role", "--nocapture"]).env(ROLE, role);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("a process");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let said =
            lines.map_while(Result::ok).find_map(|line| line.strip_prefix("ready ").map(str::to_owned));
        Self { child, said: said.expect("it is ready") }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn plays_its_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let wait = |said: &str| -> ! {
        println!("\nready {said}");
        std::io::stdout().flush().expect("standard output accepts a line");
        loop {
            std::thread::park();
        }
    };
    match role.as_str() {
        "shown" => {
            let engine = engine();
            wait(&hex(&engine));
        }
        "hidden" => {
            let params = EngineParams { status: false, ..EngineParams::default() };
            let engine = engine_over(UnixHost::new(|_, _| {}), params);
            wait(&hex(&engine));
        }
        "garbled" => {
            let _files = garbled();
            wait("");
        }
        other => panic!("no role {other}"),
    }
}

/// Files with the name of a page that are not pages, each with the reason.
fn garbled() -> [(OwnedFd, &'static str); 5] {
    const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
    let file = |bytes: &[u8], len: u64, seals: SealFlags, why| {
        let file = rustix::fs::memfd_create(NAME, MemfdFlags::ALLOW_SEALING).expect("a file");
        rustix::io::write(&file, bytes).expect("some bytes");
        rustix::fs::ftruncate(&file, len).expect("a size");
        rustix::fs::fcntl_add_seals(&file, seals).expect("seals");
        (file, why)
    };
    // A valid head; the parser's own tests have more cases.
    let head = |version: u32, rows: u32| {
        let mut bytes = b"TRKLSTAT".to_vec();
        bytes.extend([version, 4096, 256, rows].iter().flat_map(|word| word.to_le_bytes()));
        bytes.resize(96, 0);
        bytes.extend(b"soft");
        bytes
    };
    [
        file(&head(VERSION, 1), 4096 + 256, SealFlags::GROW, "not a sealed memory file"),
        file(b"nonsense", 8192, SEALS, "does not begin as a status page does"),
        file(b"x", 1, SEALS, "cut short"),
        file(&head(VERSION - 1, 1), 4096 + 256, SEALS, "use the program of the same build"),
        file(&head(VERSION, 65535), 4096 + 256, SEALS, "the file has 4352"),
    ]
}

#[test]
fn a_killed_process_is_not_shown_any_more() {
    let mut actor = Actor::start("shown");
    let row = of(&json(""), &actor.said).expect("it is shown");
    assert_eq!(row["pid"], actor.pid());
    actor.child.kill().expect("it can be killed");
    // The process is dead, but not reaped yet.
    until("its end", || of(&json(""), &actor.said).is_none().then_some(()));
    actor.child.wait().expect("its status");
    let output = top(&format!("--pid {}", actor.pid()));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains(&format!("there is no process {}", actor.pid())), "{}", stderr(&output));
}

#[test]
fn status_off_hides_a_process() {
    let actor = Actor::start("hidden");
    assert!(of(&json(""), &actor.said).is_none());
    let output = top(&format!("--once --pid {}", actor.pid()));
    let said = stderr(&output);
    assert!(!output.status.success() && said.contains("TRUNKLINE_STATUS=0"), "{said}");
}

#[test]
fn invalid_status_pages_are_refused_with_a_reason() {
    let actor = Actor::start("garbled");
    let report = json("");
    let refused = report["refused"].as_array().expect("a list");
    let mine: Vec<&str> = refused
        .iter()
        .filter(|row| row["pid"] == actor.pid())
        .filter_map(|row| row["why"].as_str())
        .collect();
    let wanted = garbled().map(|(_, why)| why);
    assert_eq!(mine.len(), wanted.len(), "{mine:?}");
    for why in wanted {
        assert!(mine.iter().any(|line| line.contains(why)), "{why} in {mine:?}");
    }
    let output = top(&format!("--pid {}", actor.pid()));
    let said = stderr(&output);
    assert!(!output.status.success() && said.contains("cannot use the status page of process"), "{said}");
}

/// The links of this process's own pages.
fn links() -> impl Iterator<Item = PathBuf> {
    let name = format!("/memfd:{NAME} (deleted)");
    let links =
        std::fs::read_dir("/proc/self/fd").expect("descriptors").map(|entry| entry.expect("one").path());
    links.filter(move |link| std::fs::read_link(link).is_ok_and(|to| to.to_str() == Some(&*name)))
}

#[test]
fn page_belongs_to_its_writer_and_cannot_be_changed() {
    let engine = engine();
    let actor = Actor::start("shown");
    // This process also holds the other's page, which must not be shown as its own.
    let theirs = std::fs::read_dir(format!("/proc/{}/fd", actor.pid())).expect("its descriptors");
    let theirs = theirs.map(|entry| entry.expect("one").path());
    let theirs =
        theirs.filter(|link| std::fs::read_link(link).is_ok_and(|to| to.to_string_lossy().contains(NAME)));
    let theirs: Vec<_> = theirs.map(|link| std::fs::File::open(link).expect("it may be read")).collect();
    assert_eq!(theirs.len(), 1);
    let report = json("");
    assert_eq!(of(&report, &actor.said).map(|row| row["pid"].clone()), Some(actor.pid().into()));
    assert_eq!(of(&report, &hex(&engine)).map(|row| row["pid"].clone()), Some(std::process::id().into()));
    assert!(links().count() >= 2);
    for link in links() {
        let opened = std::fs::OpenOptions::new().write(true).open(&link);
        if let Ok(mut file) = opened {
            assert!(file.write_all(b"x").is_err(), "{}", link.display());
            assert!(file.set_len(0).is_err(), "{}", link.display());
        }
    }
    drop(engine);
}

/// A host on a system that cannot create pages.
struct Full {
    host: UnixHost,
}

impl Host for Full {
    type Oob = UnixOob;

    fn now(&self) -> time::Instant {
        self.host.now()
    }

    fn random_bytes(&self) -> [u8; 16] {
        self.host.random_bytes()
    }

    fn oob(&self) -> &UnixOob {
        self.host.oob()
    }

    fn log(&self, level: LogLevel, text: &str) {
        self.host.log(level, text);
    }

    fn publish_page(&self, _bytes: usize) -> std::io::Result<Option<HostPage>> {
        Err(std::io::ErrorKind::StorageFull.into())
    }
}

#[test]
fn process_without_a_page_warns_and_works() {
    let (said, lines) = std::sync::mpsc::channel();
    let said = std::sync::Mutex::new(said);
    let host = UnixHost::new(move |level, text| {
        said.lock().expect("one at a time").send((level, text.to_owned())).expect("the receiver exists");
    });
    let engine = engine_over(Full { host }, EngineParams::default());
    let (level, line) = lines.try_recv().expect("a line");
    assert_eq!(level, LogLevel::Warn);
    assert!(line.contains("cannot create the status page") && line.contains("trunkline top"), "{line}");
    assert!(lines.try_recv().is_err(), "one line");
    // The counters work without a page.
    let (listen, mut handle) = engine.listen(0).expect("a listener");
    let (mut send, mut recv) = (None, None);
    until("a connection", || {
        send = send.or_else(|| engine.connect(0, &mut handle).expect("connect"));
        recv = recv.or_else(|| engine.accept(listen).expect("accept"));
        send.zip(recv).map(|_| ())
    });
    assert_eq!(engine.counters().comms_opened, 2);
    assert!(of(&json(""), &hex(&engine)).is_none());
}

#[test]
fn prometheus_lines_are_valid() {
    let (a, b) = (engine(), engine());
    let pair = connect(&a, &b, 4096);
    message(&a, &b, &pair, &[4096]);
    let output = top(&format!("--prometheus --comms --pid {}", std::process::id()));
    let text = stdout(&output);
    let mut types = std::collections::BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("a name and a type");
            assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} twice");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
        } else if !line.starts_with("# HELP ") {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let name = series.split('{').next().expect("a name");
            assert!(types.contains_key(name), "a type before {line}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
    let line = |name: &str, process: &str| {
        let process = format!("process=\"{process}\"");
        let mut lines = text.lines().filter(|line| line.starts_with(name) && line.contains(&process));
        lines.next().and_then(|line| line.rsplit_once(' ')).map(|(_, value)| value.to_owned())
    };
    assert_eq!(line("trunkline_bytes_sent_total{", &hex(&a)).as_deref(), Some("4096"));
    assert_eq!(line("trunkline_bytes_received_total{", &hex(&b)).as_deref(), Some("4096"));
    assert_eq!(line("trunkline_comm_bytes_total{", &hex(&b)).as_deref(), Some("4096"));
}

#[test]
fn table_is_aligned_and_help_names_columns() {
    let (a, b) = (engine(), engine());
    let _pair = connect(&a, &b, 64);
    let text = stdout(&top(&format!("--pid {}", std::process::id())));
    let head = text.lines().find(|line| line.contains("COMMAND")).expect("a head");
    let end = head.find("COMMS").expect("a column") + "COMMS".len();
    let rows = text.lines().skip_while(|line| !line.contains("COMMAND")).skip(1);
    // Tables of other tests of this process follow.
    for row in rows.take_while(|row| !row.is_empty()) {
        assert!(row.as_bytes()[end - 1].is_ascii_digit(), "{text}");
    }
    assert!(text.lines().all(|line| line == line.trim_end()), "{text:?}");
    let comms = stdout(&top(&format!("--comms --pid {}", std::process::id())));
    assert!(comms.contains("PEER") && comms.contains("soft0"), "{comms}");
    let help = stdout(&top("--help"));
    for word in ["Examples:", "--prometheus", "TRUNKLINE_STATUS=0", "PENDING", "AGAIN/s"] {
        assert!(help.contains(word), "{word} in {help}");
    }
    let output = top("--json --prometheus");
    assert_eq!(output.status.code(), Some(2));
}
