//! Acceptance case M18: messages of mapped memory, and short messages of private memory, make no system call. The
//! program runs itself under strace(1), and counts the calls between two marks.

use std::process::Command;

use trunkline_mem::MemoryRange;
use trunkline_node::ipc::MessageBuffer;

use crate::private::Pair;
use crate::two::{Two, Where, pattern};

/// Set in the traced process. `loud`: each message makes a system call, which proves that the trace counts calls.
const WATCHED: &str = "TAGGED_TEST_WATCHED";

const MESSAGES: usize = 1000;

/// Exchanges messages of own memory and through rings, as far as they need no new export or mapping.
fn exchange(two: &mut Two, loud: bool) {
    let pairs = [(Where::Own, 65_536), (Where::Other, 8), (Where::Own, 4096)]
        .map(|(place, len)| (two.a.buffer(place, len), two.b.buffer(place, len)));
    let messages = |two: &mut Two, count: usize| {
        for number in 0..count {
            let (source, target) = &pairs[number % pairs.len()];
            let (received, sent) = (two.post(1, target), two.send(1, source));
            assert!(two.both(sent, received).iter().all(Result::is_ok));
            if loud {
                let _ = std::fs::metadata("/loud");
            }
        }
    };
    // The clock stands still from here on, as the millisecond polls of the streams are not to be counted.
    two.stands_still = true;
    messages(two, MESSAGES);
    // Reserves heap memory: the device in a memory file copies through 64 KiB of it, and the allocator may grow once.
    drop(std::hint::black_box([vec![1_u8; 64 << 10], vec![1_u8; 32 << 10]]));
    let _ = std::fs::metadata("/mark/begin");
    messages(two, MESSAGES);
    let _ = std::fs::metadata("/mark/end");
}

/// Exchanges short messages of private memory.
fn exchange_private(loud: bool) {
    let memories = [MemoryRange::heap(4096), MemoryRange::heap(4096)];
    memories[0].write(0, &pattern(4096, 3)).unwrap();
    let mut pair = Pair::new();
    let buffers = memories.each_ref().map(|memory| MessageBuffer::from(memory.clone()));
    let mut after = || {
        if loud {
            let _ = std::fs::metadata("/loud");
        }
    };
    pair.small(&buffers, MESSAGES, &mut after);
    let _ = std::fs::metadata("/mark/begin");
    pair.small(&buffers, MESSAGES, after);
    let _ = std::fs::metadata("/mark/end");
    let mut got = vec![0; 4096];
    memories[1].read(0, &mut got).unwrap();
    assert!(got == pattern(4096, 3));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn short_private_messages_make_no_system_calls() {
    if let Ok(loud) = std::env::var(WATCHED) {
        return exchange_private(loud == "loud");
    }
    watch("quiet::short_private_messages_make_no_system_calls");
}

#[test]
fn mapped_messages_make_no_system_calls() {
    if let Ok(loud) = std::env::var(WATCHED) {
        return exchange(&mut Two::new(), loud == "loud");
    }
    watch("quiet::mapped_messages_make_no_system_calls");
}

/// Runs a test in a traced process twice: without and with a system call per message.
fn watch(name: &str) {
    for (how, expected) in [("quiet", 0), ("loud", MESSAGES)] {
        let file = std::env::temp_dir().join(format!(
            "trunkline-{}-{}-{how}",
            name.replace("::", "-"),
            std::process::id()
        ));
        let strace = Command::new("strace")
            .args(["-f", "-qq", "-o"])
            .arg(&file)
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--test-threads", "1"])
            .env(WATCHED, how)
            .output();
        let calls = std::fs::read_to_string(&file).unwrap_or_default();
        let _ = std::fs::remove_file(&file);
        let marks =
            ["/mark/begin", "/mark/end"].map(|mark| calls.lines().position(|line| line.contains(mark)));
        let [Some(begin), Some(end)] = marks else {
            let why = strace.map_or_else(|error| error.to_string(), |out| format!("{out:?}"));
            let has_failed = calls.contains("/mark/begin") || why.contains("FAILED");
            assert!(!has_failed, "the test failed under strace: {why}");
            return skip(name, &format!("strace cannot run here: {why}"));
        };
        // The thread that waits for the test makes no other system call meanwhile.
        let between: Vec<&str> = calls.lines().skip(begin + 1).take(end - begin - 1).collect();
        assert_eq!(between.len(), expected, "{how}: {:#?}", &between[..between.len().min(20)]);
    }
}

/// Reports that a test was skipped, with the reason, in the log that `./test` counts.
fn skip(name: &str, reason: &str) {
    use std::io::Write as _;
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| file.write_all(format!("{name}: {reason}\n").as_bytes()));
        assert!(noted.is_ok(), "cannot write to the skip log: {noted:?}");
    }
}
