//! Planted violations of the rules for settings; each must be caught.

use super::*;
use crate::fixture::Fixture;

/// A registry with one row of each kind that the rules distinguish.
const ROWS: &str = "setting_rows! {\n    FABRIC: \"TRUNKLINE_FABRIC\", Network, Text { expected: \"a text\" }, \"auto\", \"the network\";\n}\n";

/// A workspace with a correct page, a registry, and a crate `engine` with this library.
fn fixture_with(engine: &str) -> Fixture {
    let fixture = Fixture::new();
    fixture
        .with("settings", &[], "pub mod rows;\n")
        .write("crates/settings/src/rows/network.rs", ROWS)
        .write(PAGE, &page::render_page())
        .with("engine", &[], engine);
    fixture
}

/// A source that reads the row of the registry.
const READER: &str = "fn read() { reader.text(&network::FABRIC); }\n";

fn check(fixture: &Fixture) -> CheckFindings {
    check_settings(&fixture.load(), false).unwrap()
}

fn check_engine(more: &str) -> CheckFindings {
    check(&fixture_with(&format!("{READER}{more}")))
}

#[test]
fn a_page_that_differs_is_caught() {
    let fixture = fixture_with(READER);
    assert!(check(&fixture).is_clean(), "{:?}", check(&fixture).broken);
    let page = page::render_page().replacen("Settings", "Variables", 1);
    fixture.write(PAGE, &page);
    assert!(check(&fixture).mentions("docs/settings.md:1: differs from the registry"));
    assert!(check_settings(&fixture.load(), true).unwrap().is_clean());
    assert!(check(&fixture).is_clean(), "the check accepts the written page");
}

#[test]
fn a_read_of_the_environment_is_caught() {
    for (planted, named) in [
        ("fn planted() { std::env::var(\"HOME\"); }", "planted reads the environment by env::var;"),
        (
            "struct S; impl S { fn planted() { env::vars_os(); } }",
            "planted reads the environment by env::vars_os;",
        ),
        (
            "static PLANTED: T = T::new(|| std::env::var_os(NAME));",
            "PLANTED reads the environment by env::var_os;",
        ),
        ("fn planted() { names.map(std::env::var); }", "planted reads the environment by env::var;"),
        (
            "fn planted() { assert!(std::env::vars().count() > 0); }",
            "planted reads the environment by env::vars;",
        ),
        ("fn planted() { unsafe { libc::getenv(name) }; }", "planted reads the environment by getenv;"),
        ("use std::env::{args, var_os};", "use reads the environment by env::var_os;"),
        ("use std::env::var as look_up;", "use reads the environment by env::var;"),
        ("use std::{env as e, io};", "use reads the environment by env as e;"),
        ("use std::env::*;", "use reads the environment by env::*;"),
    ] {
        let findings = check_engine(planted);
        assert!(
            findings.mentions(&format!("crates/engine/src/lib.rs:2: {named}")),
            "{planted}: {findings:?}"
        );
        assert_eq!(findings.broken.len(), 1, "{planted}");
    }
}

#[test]
fn other_uses_of_the_environment_pass() {
    for clean in [
        "fn f() { std::env::args(); std::env::current_exe(); command.env(\"HOME\", \"/\"); }",
        "fn f() { self.var(); vars(); // std::env::var(\"HOME\")\n }",
        "const VERSION: &str = env!(\"CARGO_PKG_VERSION\");",
        "#[cfg(test)]\nmod tests { fn f() { std::env::var(\"HOME\"); \"TRUNKLINE_PLANTED\"; } }",
    ] {
        let findings = check_engine(clean);
        assert!(findings.is_clean(), "{clean}: {findings:?}");
    }
    let fixture = fixture_with(READER);
    let read = "fn f() { std::env::var(\"HOME\"); }";
    fixture
        .write("crates/engine/build.rs", read)
        .write("crates/engine/src/fuzzing/mod.rs", read)
        .write("crates/engine/src/link_tests.rs", read)
        .write("tools/other/src/lib.rs", read);
    assert!(check(&fixture).is_clean(), "{:?}", check(&fixture).broken);
}

#[test]
fn a_name_without_a_row_is_caught() {
    for (planted, name) in [
        ("const A: &str = \"TRUNKLINE_FABRICK\";", "TRUNKLINE_FABRICK"),
        ("const A: &str = \"set NCCL_IB_HCAS=a\";", "NCCL_IB_HCAS"),
        ("const A: &str = \"first\\nSHMEM_SIZE\";", "SHMEM_SIZE"),
        ("const A: &[u8] = b\"NVSHMEM_PLANTED\";", "NVSHMEM_PLANTED"),
        ("fn f() { println!(\"{} (RCCL_PLANTED)\", 1); }", "RCCL_PLANTED"),
        ("#[error(\"unset TRUNKLINE_PLANTED\")] struct E;", "TRUNKLINE_PLANTED"),
        ("const A: &str = \"TRUNKLINE_FABRICK_\";", "TRUNKLINE_FABRICK_"),
    ] {
        let findings = check_engine(planted);
        assert!(findings.mentions(&format!("lib.rs:2: {name} is no setting")), "{planted}: {findings:?}");
        assert_eq!(findings.broken.len(), 1, "{planted}");
    }
}

#[test]
fn names_of_the_registry_pass() {
    let clean = "/// Not `TRUNKLINE_PLANTED`.\nconst A: [&str; 5] = [\"TRUNKLINE_FABRIC=soft, or NCCL_IB_HCA\", \
                 \"TRUNKLINE_JOB_\", \"TRUNKLINE_\", \"TRUNKLINE_TEST_ANY\", \"XTRUNKLINE_PLANTED\"];";
    let findings = check_engine(clean);
    assert!(findings.is_clean(), "{findings:?}");
}

#[test]
fn a_row_without_a_reader_is_caught() {
    for unread in ["", "const FABRIC: u8 = 0;", "#[cfg(test)]\nmod tests { const A: R = network::FABRIC; }"] {
        let findings = check(&fixture_with(unread));
        assert!(
            findings.mentions("network::FABRIC: no product source reads TRUNKLINE_FABRIC by this constant"),
            "{unread}: {findings:?}"
        );
    }
    let in_macro = "fn f() { assert!(reader.switch(&rows::network::FABRIC)); }";
    assert!(check(&fixture_with(in_macro)).is_clean());
}

#[test]
fn rows_without_effect_are_read_by_their_table() {
    let fixture = fixture_with(READER);
    let unused = "pub mod nccl {\n setting_rows! { DATA: \"NCCL_IB_DATA_DIRECT\", Unused, fixed(\"\"), \"\", \"none\"; }\n}\n";
    fixture.write("crates/settings/src/rows/unused.rs", unused);
    assert!(check(&fixture).mentions("unused::nccl::DATA: no product source reads NCCL_IB_DATA_DIRECT"));
    fixture.with("engine", &[], &format!("{READER}fn f() {{ describe(unused::nccl::ROWS); }}"));
    assert!(check(&fixture).is_clean(), "{:?}", check(&fixture).broken);
    fixture.with("engine", &[], "fn f() { describe(network::ROWS, unused::nccl::ROWS); }");
    assert!(
        check(&fixture).mentions("network::FABRIC: no product source reads"),
        "a table is no reader of others"
    );
}

#[test]
fn exceptions_excuse_only_while_they_are_needed() {
    let list = "[[read]]\nfile = \"crates/engine/src/lib.rs\"\nfunction = \"launch\"\nreason = \"a launcher's variable\"\n\
                [[word]]\nname = \"SHMEM_CTX_*\"\nreason = \"a constant in C\"\n\
                [[row]]\ngroup = \"Network\"\nreaders = [\"crates/engine/src\"]\nreason = \"read by its own name\"\n";
    let used = "fn launch() { std::env::var(\"TRUNKLINE_FABRIC\"); \"SHMEM_CTX_PRIVATE\"; }";
    let fixture = fixture_with(used);
    fixture.write(allow_list::ALLOW_LIST, list);
    assert!(check(&fixture).is_clean(), "{:?}", check(&fixture).broken);
    // A reader that does not name the variable reads nothing.
    fixture.with("engine", &[], "fn launch() { std::env::var(NAME); \"SHMEM_CTX_PRIVATE\"; }");
    assert!(check(&fixture).mentions("network::FABRIC: no product source reads TRUNKLINE_FABRIC"));
    fixture.with("engine", &[], READER);
    let stale = check(&fixture);
    for entry in ["launch in crates/engine/src/lib.rs", "SHMEM_CTX_*", "Network"] {
        assert!(stale.mentions(&format!("{entry} is not needed any more")), "{entry}: {stale:?}");
    }
    fixture.with("engine", &[], used).write(allow_list::ALLOW_LIST, &list.replace("a constant in C", " "));
    assert!(check(&fixture).mentions("SHMEM_CTX_* gives no reason"));
}

#[test]
fn rows_of_the_sources_are_those_of_the_registry() {
    let workspace = Workspace::current().unwrap();
    let registry = workspace.find_crate(REGISTRY).unwrap();
    let sources = source::product_sources(&registry.dir).unwrap();
    let mut found: Vec<(String, String)> =
        sources.iter().flat_map(row_constant::read_rows).map(|row| (row.name, row.group)).collect();
    let mut known: Vec<(String, String)> = trunkline_settings::rows::all_rows()
        .map(|row| (row.name.to_owned(), format!("{:?}", row.group)))
        .collect();
    found.sort();
    known.sort();
    assert_eq!(found, known);
}
