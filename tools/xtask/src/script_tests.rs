//! Tests of the script `./test` that run no tests of the workspace.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use crate::shell;

fn script_command(args: &[&str]) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut command = Command::new(root.join("test"));
    command.args(args).current_dir("/");
    command
}

fn script(args: &[&str]) -> Output {
    script_command(args).output().unwrap()
}

/// Runs the script on a system that has only the shell's own tools and these programs, each a line of shell.
fn on_a_bare_system(args: &[&str], programs: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let path = tempfile::tempdir().unwrap();
    for tool in ["bash", "dirname", "mktemp", "rm", "cat", "sort", "tr"] {
        symlink(shell::find_program(tool).unwrap(), path.path().join(tool)).unwrap();
    }
    // The folder in which the script searches the built tool.
    std::fs::create_dir(path.path().join("debug")).unwrap();
    for (name, line) in programs {
        let file = path.path().join(name);
        std::fs::write(&file, format!("#!/bin/bash\n{line}\n")).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let out =
        script_command(args).env("PATH", path.path()).env("CARGO_TARGET_DIR", path.path()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.code(), text(&out.stdout), text(&out.stderr))
}

#[test]
fn missing_programs_are_skipped() {
    for args in [&["--no-install"][..], &[]] {
        // Not root, no sudo.
        let (code, out, err) =
            on_a_bare_system(args, &[("id", "echo 1000"), ("apt-get", "echo apt-get ran")]);
        for program in ["valgrind", "strace"] {
            let skip = format!("SKIPPED {program}: not installed (package {program}; ");
            assert!(out.contains(&skip), "{out}{err}");
        }
        assert!(!out.contains("apt-get ran"), "{out}");
        assert_eq!(err.contains("neither root nor sudo"), args.is_empty(), "{err}");
        assert!(err.ends_with("./test: cargo is not on the path; https://rustup.rs installs it\n"), "{err}");
        assert_eq!(code, Some(1));
    }
}

#[test]
fn sudo_installs_missing_programs() {
    let programs = [
        ("id", "echo 1000"),
        ("sudo", "\"$@\""),
        ("true", ""),
        ("env", "echo \"env $*\""),
        ("apt-get", "exit 1"),
        ("cargo", "exit 1"),
    ];
    let (code, out, err) = on_a_bare_system(&[], &programs);
    let install = "env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ";
    let packages = out.lines().find_map(|line| line.strip_prefix(install)).expect(&out);
    for package in ["gcc", "strace", "valgrind"] {
        assert!(packages.split(' ').any(|word| word == package), "{package}: {out}{err}");
    }
    assert!(err.contains("there is no cc"), "{err}");
    assert_eq!(code, Some(1));
    let refused = [("id", "echo 1000"), ("sudo", "exit 1"), ("apt-get", "echo apt-get ran")];
    let (_, out, err) = on_a_bare_system(&[], &refused);
    assert!(err.contains("neither root nor sudo") && !out.contains("apt-get ran"), "{out}{err}");
}

/// The last lines alone must name the failures that need a repair.
#[test]
fn last_lines_name_the_failures() {
    let planted = "mutant quiet (1.2 s) ... once more, alone\nmutant quiet ... SURVIVED\nmutant loud (0.1 s) ... killed\n\
                   test a::b ... FAILED\ntest result: FAILED. 1 passed; 2 failed; 0 ignored";
    let tool = format!("[ \"$1\" != mutants ] || {{ printf '{planted}\\n'; exit 1; }}");
    let mut programs = vec![("cargo", String::new()), ("debug/xtask", tool)];
    let real = ["awk", "cc", "env", "grep", "nice", "sed", "tail", "tee", "timeout"];
    programs.extend(
        real.map(|tool| (tool, format!("exec {} \"$@\"", shell::find_program(tool).unwrap().display()))),
    );
    let programs: Vec<_> = programs.iter().map(|(name, line)| (*name, line.as_str())).collect();
    let (code, out, err) = on_a_bare_system(&["--no-install"], &programs);
    let end = out.split("\nfailed:\n").nth(1).unwrap_or_else(|| panic!("{out}{err}"));
    let named: Vec<_> = end.lines().take_while(|line| line.starts_with("  ")).collect();
    assert!(named.contains(&"  mutants: mutant quiet ... SURVIVED"), "{named:?}");
    assert!(named.contains(&"  mutants: test a::b ... FAILED"), "{named:?}");
    assert!(!named.iter().any(|line| line.contains("loud") || line.contains("alone")), "{named:?}");
    assert_eq!(code, Some(1));
}

#[test]
fn help_lists_the_options() {
    let out = script(&["--help"]);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success());
    for word in ["--quick", "--full", "--no-install", "TRUNKLINE_REQUIRE", "N passed, N failed, N skipped"] {
        assert!(text.contains(word), "{word}");
    }
}

#[test]
fn an_unknown_argument_is_refused() {
    let out = script(&["--bogus"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("--bogus"));
}

/// Runs the script that boots a machine, without earlier downloads and without a way to download.
fn without_a_machine(require: &str) -> (Option<i32>, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let mut command = Command::new(root.join("scripts/rxe-vm"));
    command.args(["--no-install", "/bin/true"]).env("TRUNKLINE_VM_CACHE", cache.path());
    let out = command.env("TRUNKLINE_REQUIRE", require).output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn missing_machine_is_a_skip_unless_required() {
    let (code, err) = without_a_machine("soft");
    assert!(code == Some(77) && err.starts_with("rxe-vm: not "), "{code:?}: {err}");
    assert_eq!(without_a_machine("soft,verbs").0, Some(1));
}

/// Boots a machine whose emulator only writes files: a number of kernels panic, and the next one reports a command that
/// succeeded.
fn boot_after_panics(panics: u32) -> (Option<i32>, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let write_file = |name: &str, text: &str| {
        let file = cache.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    };
    write_file("kernel/boot/vmlinuz-1", "");
    write_file("kernel/lib/modules/1/kernel/veth.ko", "");
    write_file("modules.1", "kernel/veth.ko:\n");
    write_file("busybox/bin/busybox", "#!/bin/sh\ncat >/dev/null\n");
    let emulator = [
        "#!/bin/bash",
        "for argument; do",
        "    case $argument in",
        "        file:*console) console=${argument#file:} ;;",
        "        file:*out) out=${argument#file:} ;;",
        "    esac",
        "done",
        r"echo >>$COUNTER",
        r"if [ $(wc -l <$COUNTER) -le $PANICS ]; then",
        r"    printf 'RIP: 0010:enqueue_timer\nKernel panic - not syncing\n' >$console",
        "else",
        r"    printf 'rxe-vm: == 1 ended with status 0\nrxe-vm: == done\n' >$out",
        "fi\n",
    ];
    let emulator = emulator.join("\n");
    write_file("bin/qemu-system-x86_64", &emulator);
    let old = std::env::var_os("PATH").unwrap_or_default();
    let path =
        std::env::join_paths([cache.path().join("bin")].into_iter().chain(std::env::split_paths(&old)));
    let mut command = Command::new(root.join("scripts/rxe-vm"));
    command.args(["--no-install", "/bin/true"]).env("TRUNKLINE_VM_CACHE", cache.path());
    command.env("COUNTER", cache.path().join("boots")).env("PANICS", panics.to_string());
    let out = command.env("PATH", path.unwrap()).env_remove("TRUNKLINE_REQUIRE").output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

#[test]
fn panicking_kernel_is_booted_again() {
    let (code, err) = boot_after_panics(0);
    if code == Some(77) {
        println!("SKIPPED boots of the machine: {err}");
        return;
    }
    assert!(code == Some(0) && !err.contains("panicked"), "{code:?}: {err}");
    let (code, err) = boot_after_panics(2);
    assert!(code == Some(0) && err.contains("at try 2 of 3: RIP: 0010:enqueue_timer"), "{code:?}: {err}");
    let (code, err) = boot_after_panics(3);
    assert!(code == Some(1) && err.contains("the machine ended early"), "{code:?}: {err}");
}

#[test]
fn machine_script_refuses_unknown_arguments() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let machine = |args: &[&str]| Command::new(root.join("scripts/rxe-vm")).args(args).output().unwrap();
    assert_eq!(machine(&["--bogus"]).status.code(), Some(2));
    assert_eq!(machine(&[]).status.code(), Some(2));
    let help = machine(&["--help"]);
    assert!(help.status.success() && String::from_utf8_lossy(&help.stdout).contains("--no-install"));
}

#[test]
fn quick_and_full_exclude_each_other() {
    let out = script(&["--quick", "--full"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("exclude each other"));
}

#[test]
fn a_quick_run_installs_nothing_and_plants_no_bugs() {
    let tool = "echo \"ran $*\"; printf 'test result: ok. 3 passed; 0 failed; 0 ignored\\n'";
    let mut programs =
        vec![("cargo", String::new()), ("debug/xtask", tool.to_owned()), ("apt-get", "echo no".into())];
    let real = ["awk", "cc", "grep", "sed", "tee", "timeout"];
    programs.extend(
        real.map(|tool| (tool, format!("exec {} \"$@\"", shell::find_program(tool).unwrap().display()))),
    );
    let programs: Vec<_> = programs.iter().map(|(name, line)| (*name, line.as_str())).collect();
    let (code, out, err) = on_a_bare_system(&["--quick"], &programs);
    let ran: Vec<_> = out.lines().filter_map(|line| line.strip_prefix("ran ")).collect();
    assert_eq!(ran, ["ci --quick", "suite --unit"], "{out}{err}");
    assert_eq!(code, Some(0), "{out}{err}");
}
