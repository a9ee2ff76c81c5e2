//! Groups of shared queue pairs, as `trunkline top` and `trunkline info --pid` show them.

use std::collections::BTreeSet;

use trunkline_engine::SharingParams;
use trunkline_proto::pool::config::SharingMode;

use super::*;

fn sharing(groups: u8) -> Running {
    let sharing = SharingParams { sharing: SharingMode::On, groups, ..SharingParams::default() };
    engine_over(UnixHost::new(|_, _| {}), EngineParams { sharing, ..EngineParams::default() })
}

fn info(args: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline"));
    command.arg("info").args(args.split_whitespace()).stdin(Stdio::null()).output().expect("it runs")
}

/// The one group that a process shows.
#[track_caller]
fn the_group(row: &Value) -> Value {
    let groups = row["groups"].as_array().expect("a list");
    assert_eq!((groups.len(), &row["group_count"]), (1, &1.into()), "{row}");
    groups[0].clone()
}

/// A message over each pair, all in flight together. The last pair is tested first, so that its polls find completions
/// of the other members.
fn messages(from: &Running, to: &Running, pairs: &[Pair]) {
    let receives: Vec<_> = pairs
        .iter()
        .map(|pair| {
            let buffer = RecvBuf { mr: pair.recv.1, offset: 0, len: 64, tag: 0 };
            until("a receive", || to.irecv(pair.recv.0, &[buffer]).expect("irecv"))
        })
        .collect();
    let send = |pair: &Pair| {
        let (comm, mr) = pair.send;
        until("a send", || from.isend(comm, mr, 0, 64, 0).expect("isend"))
    };
    let sends: Vec<_> = pairs.iter().map(send).collect();
    for (send, receive) in sends.into_iter().zip(receives).rev() {
        until("a send's end", || from.test(send, &mut [0; 8]).expect("a send").then_some(()));
        until("an arrival", || to.test(receive, &mut [0; 8]).expect("a receive").then_some(()));
    }
}

#[test]
fn group_is_shown_while_it_has_members() {
    let (a, b) = (sharing(1), sharing(1));
    let mut pairs: Vec<Pair> = (0..3).map(|_| connect(&a, &b, 4096)).collect();
    (0..300).for_each(|_| messages(&a, &b, &pairs));
    for (engine, peer, way) in [(&a, &b, "send"), (&b, &a, "recv")] {
        let row = shown(engine);
        let group = the_group(&row);
        assert_eq!(
            (&group["direction"], &group["members"], &group["links"]),
            (&way.into(), &3.into(), &1.into())
        );
        assert_eq!((&group["nic"], &group["peer"]), (&"soft0".into(), &hex(peer).into()));
        assert_eq!((&group["slices_total"], &group["dropped"]), (&8.into(), &0.into()));
        assert_eq!(group["eager_total"].as_u64() > Some(0), way == "send", "{group}");
        assert!(group["eager_used"].as_u64() <= group["eager_total"].as_u64(), "{group}");
        let comms = row["comms"].as_array().expect("a list");
        assert!(comms.iter().all(|comm| comm["group"] == group["group"]), "{row}");
        let members: BTreeSet<_> = comms.iter().map(|comm| comm["member"].as_u64()).collect();
        assert!(members.len() == 3 && !members.contains(&None), "{row}");
    }
    assert!(the_group(&shown(&b))["routed"].as_u64() > Some(0), "{}", shown(&b));
    let ended = |left: u64| {
        until("closed lanes to end", || {
            [&a, &b].iter().for_each(|engine| engine.progress_all());
            let row = [shown(&a), shown(&b)];
            row.iter().all(|row| row["nic_usage"][0]["queue_pairs"] == left).then_some(row)
        })
    };
    let close = |pair: Pair| {
        a.close(pair.send.0).expect("a comm");
        b.close(pair.recv.0).expect("a comm");
    };
    close(pairs.remove(0));
    until("one to leave", || {
        [&a, &b].iter().for_each(|engine| engine.progress_all());
        [&a, &b].iter().all(|engine| the_group(&shown(engine))["members"] == 2).then_some(())
    });
    let closed = shown(&a)["comms"][0].clone();
    assert_eq!((&closed["state"], &closed["group"]), (&"closed".into(), &Value::Null));
    pairs.into_iter().for_each(close);
    for row in ended(0) {
        assert_eq!((&row["groups"], &row["group_count"]), (&Value::Array(Vec::new()), &0.into()));
    }
    let pair = connect(&a, &b, 64);
    message(&a, &b, &pair, &[64]);
    assert_eq!(the_group(&shown(&a))["members"], 1, "the earlier member has left the group");
}

#[test]
fn every_format_shows_groups_if_there_are_any() {
    let (a, b) = (sharing(1), sharing(1));
    let pairs = [connect(&a, &b, 64), connect(&a, &b, 64)];
    messages(&a, &b, &pairs);
    let pid = std::process::id();
    let looked = info(&format!("--json --pid {pid}"));
    let report: Value = serde_json::from_slice(&looked.stdout).expect("one JSON object");
    let row = of(&report, &hex(&a)).expect("it is shown");
    assert_eq!(
        (the_group(&row), &row["comms"][0]["group"]),
        (the_group(&shown(&a)), &shown(&a)["comms"][0]["group"])
    );
    let peer = format!("peer=\"{}\"", hex(&b));
    let text = stdout(&top(&format!("--prometheus --pid {pid}")));
    for (name, value) in [("group_members", "2"), ("group_links", "1"), ("group_dropped_total", "0")] {
        let mut lines = text.lines().filter(|line| line.starts_with(&format!("trunkline_{name}{{")));
        let line = lines.find(|line| line.contains(&peer)).expect(name);
        assert!(line.ends_with(&format!(" {value}")) && line.contains("nic=\"soft0\""), "{line}");
    }
    for text in [stdout(&top(&format!("--pid {pid}"))), stdout(&info(&format!("--pid {pid}")))] {
        let mut lines = text.lines().skip_while(|line| !line.starts_with("GROUPS of shared queue pairs"));
        let head = lines.by_ref().nth(1).expect("a head");
        for word in ["DIR", "NIC", "PEER", "LINKS", "MEMBERS", "CREDITS", "SLICES", "ROUTED", "DROPPED"] {
            assert!(head.contains(word), "{word} in {text}");
        }
        assert!(lines.any(|line| line.contains("send") && line.contains("soft0")), "{text}");
    }
    let actor = Actor::start("shown");
    let output = top(&format!("--once --pid {}", actor.pid()));
    assert!(output.status.success() && !stdout(&output).contains("GROUPS"), "{}", stdout(&output));
    let row = of(&json(&format!("--pid {}", actor.pid())), &actor.said).expect("it is shown");
    assert_eq!((&row["groups"], &row["group_count"]), (&Value::Array(Vec::new()), &0.into()));
    let output = info("--pid 4194304");
    assert!(!output.status.success() && stderr(&output).contains("no process"), "{}", stderr(&output));
    assert_eq!(info("--params --pid 1").status.code(), Some(2));
    assert!(
        stdout(&info("--help")).contains("trunkline info --pid") && stdout(&top("--help")).contains("ROUTED")
    );
}

#[test]
fn first_groups_are_shown_and_all_are_counted() {
    let a = sharing(8);
    let others: Vec<Running> = (0..5).map(|_| sharing(8)).collect();
    let pairs: Vec<Pair> = others.iter().flat_map(|b| (0..8).map(|_| connect(&a, b, 64))).collect();
    assert_eq!(pairs.len(), 40);
    let row = shown(&a);
    assert_eq!((row["groups"].as_array().map(Vec::len), &row["group_count"]), (Some(32), &40.into()));
    let comms = row["comms"].as_array().expect("a list");
    let groups: Vec<_> = comms.iter().map(|comm| comm["group"].as_u64()).collect();
    assert_eq!(groups[..32], (0..32).map(Some).collect::<Vec<_>>());
    assert_eq!(groups[32..], [None; 8]);
    assert!(comms.iter().all(|comm| comm["member"].is_u64()), "{row}");
}
