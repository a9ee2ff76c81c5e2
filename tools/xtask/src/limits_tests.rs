//! Planted violations of the limits; each must be caught.

use super::*;
use crate::fixture::Fixture;

fn check(lib: &str) -> CheckFindings {
    let fixture = Fixture::new();
    fixture.with("engine", &[], lib);
    run(&fixture.load()).unwrap()
}

fn function(lines: usize) -> String {
    format!("fn long() {{\n{}}}\n", "    f();\n".repeat(lines - 2))
}

#[test]
fn an_overlong_function_is_caught() {
    assert!(check(&function(100)).is_clean());
    assert!(check(&function(101)).mentions("lib.rs:1: fn long has 101 lines"));
    let method = format!("struct S;\nimpl S {{\n{}}}\n", function(101));
    assert!(check(&method).mentions("lib.rs:3: fn long"));
    let default = format!("trait T {{\n{}}}\n", function(101));
    assert!(check(&default).mentions("lib.rs:2: fn long"));
}

#[test]
fn docs_and_tests_do_not_count() {
    let documented = format!("{}{}", "/// Why.\n".repeat(30), function(90));
    assert!(check(&documented).is_clean());
    assert!(check(&format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function(1100))).is_clean());
}

#[test]
fn an_overlong_file_is_caught() {
    assert!(check(&"const A: u8 = 0;\n".repeat(1000)).is_clean());
    assert!(check(&"const A: u8 = 0;\n".repeat(1001)).mentions("1001 lines without tests"));
}

#[test]
fn file_scope_state_is_caught() {
    assert!(check("static NAME: &str = \"Mutex\";").is_clean());
    for planted in [
        "static mut A: u8 = 0;",
        "static A: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);",
        "static A: Option<Mutex<u8>> = None;",
        "fn f() { static A: OnceLock<u8> = OnceLock::new(); }",
        "struct Inner(AtomicU64); struct World { inner: Inner } static A: World = W;",
        "thread_local! { static A: u8 = 0; }",
    ] {
        assert!(check(planted).mentions("A is file-scope mutable state"), "{planted}");
    }
}

#[test]
fn allow_list_needs_reasons_and_existing_statics() {
    let fixture = Fixture::new();
    let entry = "[[state]]\nfile = \"crates/nccl/src/lib.rs\"\nname = \"WORLD\"\nreason = \"one cell\"\n";
    fixture.with("nccl", &[], "static WORLD: Mutex<u8> = Mutex::new(0);").write(ALLOW_LIST, entry);
    assert!(run(&fixture.load()).unwrap().is_clean());
    fixture.with("nccl", &[], "");
    assert!(run(&fixture.load()).unwrap().mentions("WORLD in crates/nccl/src/lib.rs does not exist"));
}
