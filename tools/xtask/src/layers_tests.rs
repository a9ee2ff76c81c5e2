//! Planted violations of the layers; each must be caught, and a tidy tree must pass.

use super::*;
use crate::fixture::Fixture;

const PURE: &str = "#![no_std]\n#![forbid(unsafe_code)]\n";
const SAFE: &str = "#![forbid(unsafe_code)]\n";

fn tidy() -> Fixture {
    let fixture = Fixture::new();
    fixture.with("proto", &[], PURE).with("sys", &[], "").with("mem", &["sys"], "");
    fixture
}

#[test]
fn a_tidy_tree_passes() {
    let fixture = tidy();
    fixture.with("engine", &["proto"], SAFE).with("cli", &["engine"], SAFE);
    assert_eq!(run(&fixture.load()).unwrap().broken, []);
}

#[test]
fn an_arrow_up_is_caught() {
    let fixture = tidy();
    fixture.with("softnic", &["engine"], "").with("engine", &[], SAFE);
    assert!(run(&fixture.load()).unwrap().mentions("in layer 2 depends on engine in layer 3"));
}

#[test]
fn an_unlisted_sideways_arrow_is_caught_outside_tests() {
    let fixture = tidy();
    fixture.with("softnic", &["verbs"], "").with("verbs", &[], "");
    assert!(run(&fixture.load()).unwrap().mentions("depends on verbs in layer 2"));
    let fixture = tidy();
    fixture.with("nccl-host", &["sys"], "").with("nccl", &[], "");
    fixture.manifest("nccl", "[dev-dependencies]\ntrunkline-nccl-host = { path = \"../nccl-host\" }\n");
    assert_eq!(run(&fixture.load()).unwrap().broken, []);
}

#[test]
fn proto_and_sys_may_not_meet_through_others() {
    let fixture = tidy();
    fixture.with("proto", &["mem"], PURE);
    let findings = run(&fixture.load()).unwrap();
    assert!(findings.mentions("reaches sys"));
    assert!(findings.mentions("depends on trunkline-mem, which is not on its allow-list"));
}

#[test]
fn unlisted_users_of_sys_are_caught() {
    let fixture = tidy();
    fixture.with("engine", &["sys"], SAFE).with("softnic", &["sys"], "");
    let findings = run(&fixture.load()).unwrap();
    assert!(findings.mentions("engine: uses sys"));
    assert!(findings.mentions("softnic: uses sys"));
}

#[test]
fn the_plugin_host_knows_only_sys() {
    let fixture = tidy();
    fixture.with("nccl-host", &["sys", "proto"], "");
    assert!(run(&fixture.load()).unwrap().mentions("nccl-host: depends on proto"));
}

#[test]
fn the_engine_names_no_fabric() {
    let fixture = tidy();
    fixture.with("softnic", &[], "").with("engine", &["softnic"], SAFE);
    assert!(run(&fixture.load()).unwrap().mentions("names the fabric softnic"));
}

#[test]
fn std_in_proto_is_caught_but_not_in_its_tests() {
    let fixture = tidy();
    let body = "/// std::mem in a comment\npub fn f(std: u8) -> u8 { std }\n#[cfg(test)] mod t { use std::vec::Vec; }\n";
    fixture.with("proto", &[], &format!("{PURE}{body}"));
    assert_eq!(run(&fixture.load()).unwrap().broken, []);
    fixture.with("proto", &[], &format!("{PURE}use std::vec::Vec;"));
    assert!(run(&fixture.load()).unwrap().mentions("lib.rs:3: uses std"));
    fixture.with("proto", &[], &format!("{PURE}macro_rules! m {{ () => {{ ::std::process::abort() }} }}"));
    assert!(run(&fixture.load()).unwrap().mentions("uses std"));
    fixture.with("proto", &[], &format!("{PURE}extern crate std;"));
    assert!(run(&fixture.load()).unwrap().mentions("uses std"));
}

#[test]
fn input_and_output_of_settings_are_caught() {
    let fixture = tidy();
    let body = "/// std::env in a comment\npub struct Row { fs: u8 }\npub fn net(io: u8) -> u8 { io + \"std::fs\".len() as u8 }\n";
    let tests = "#[cfg(test)] mod t { use std::fs; }\n";
    fixture.with("settings", &[], &format!("{SAFE}{body}{tests}"));
    assert_eq!(run(&fixture.load()).unwrap().broken, []);
    for (line, module) in [
        ("pub fn f() { std::env::var_os(\"X\"); }", "env"),
        ("use std::fs;", "fs"),
        ("use std::{fmt, fs as files};", "fs"),
        ("use std::{fmt, net}; pub type A = net::IpAddr;", "net"),
        ("use std::fs::File;", "fs"),
        ("macro_rules! m { () => { ::std::process::id() } }", "process"),
        ("pub fn f() { eprintln!(\"{:?}\", std::time::Instant::now()); }", "time"),
    ] {
        fixture.with("settings", &[], &format!("{SAFE}{line}"));
        let found = run(&fixture.load()).unwrap();
        assert!(found.mentions(&format!("lib.rs:2: uses std::{module}; settings is pure")), "{line}");
    }
    fixture.with("settings", &["proto"], SAFE).with("proto", &[], PURE);
    assert!(
        run(&fixture.load())
            .unwrap()
            .mentions("settings: depends on trunkline-proto, which is not on its allow-list")
    );
    fixture.with("settings", &[], "");
    assert!(run(&fixture.load()).unwrap().mentions("settings/src/lib.rs: lacks"));
}

#[test]
fn missing_attributes_are_caught() {
    let fixture = tidy();
    fixture.with("proto", &[], "").with("cli", &[], "#![deny(unsafe_code)]");
    let findings = run(&fixture.load()).unwrap();
    assert!(findings.mentions("proto/src/lib.rs: lacks #![no_std]"));
    assert!(findings.mentions("proto/src/lib.rs: lacks #![forbid(unsafe_code)]"));
    assert!(findings.mentions("cli/src/lib.rs: lacks #![forbid(unsafe_code)]"));
}

#[test]
fn the_tool_may_not_name_the_plugin() {
    let fixture = tidy();
    fixture.with("nccl", &[], "");
    fixture.with("cli", &["nccl"], &format!("{SAFE}pub const SO: &str = \"libtrunkline_nccl.so\";"));
    assert_eq!(run(&fixture.load()).unwrap().broken, []);
    fixture.with("cli", &["nccl"], &format!("{SAFE}pub use trunkline_nccl::status;"));
    assert!(run(&fixture.load()).unwrap().mentions("lib.rs:2: names trunkline_nccl"));
}

#[test]
fn the_tables_stay_at_the_edge_of_the_plugin() {
    let fixture = tidy();
    fixture.with("nccl", &["sys"], "mod abi;\n").write("crates/nccl/src/abi/v9.rs", "use trunkline_sys::x;");
    assert_eq!(run(&fixture.load()).unwrap().broken, []);
    fixture.write("crates/nccl/src/plugin.rs", "use trunkline_sys::x;");
    assert!(run(&fixture.load()).unwrap().mentions("plugin.rs:1: names trunkline_sys"));
}

#[test]
fn shipped_crates_need_test_crates_in_tests_alone() {
    let fixture = tidy();
    fixture.write("Cargo.toml", "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\", \"testing/*\"]\n");
    fixture.with("nccl", &[], "").with("ofi", &[], "");
    let manifest = "[package]\nname = \"trunkline-ofi-strict\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
    fixture.write("testing/ofi-strict/Cargo.toml", manifest).write("testing/ofi-strict/src/lib.rs", "");
    let needs = "trunkline-ofi-strict = { path = \"../../testing/ofi-strict\" }\n";
    fixture.manifest("nccl", &format!("[dev-dependencies]\n{needs}"));
    assert_eq!(run(&fixture.load()).unwrap().broken, []);
    fixture.manifest("ofi", needs);
    assert!(run(&fixture.load()).unwrap().mentions("ofi: ships, and depends on testing/ofi-strict"));
}

#[test]
fn a_crate_without_a_layer_is_caught() {
    let fixture = tidy();
    fixture.with("attic", &[], "");
    assert!(run(&fixture.load()).unwrap().mentions("attic: has no layer"));
}
