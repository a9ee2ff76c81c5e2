//! Finds the files that tests open at run time, the plugin and the command, beside the test program.
//!
//! The tests themselves are one integration binary, `tests/main.rs`. Most start this binary again as one or two
//! processes of their own, because environment, descriptors and deaths are those of a whole process.
#![forbid(unsafe_code)]

pub mod testbed;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns cargo's output directory of this profile, derived from the path of the running test program.
///
/// # Errors
/// If the program's own path cannot be read.
pub fn profile_dir() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let deps = program.parent().unwrap_or(Path::new("."));
    Ok(deps.parent().unwrap_or(deps).to_path_buf())
}

/// Returns the path of the plugin that was built with the tests; builds it now if it does not exist.
///
/// # Errors
/// If it does not exist and cargo cannot build it.
pub fn plugin_path() -> io::Result<PathBuf> {
    let dir = profile_dir()?;
    let built = dir.join("deps/libtrunkline_nccl.so");
    if built.exists() {
        return Ok(built);
    }
    build(&dir, &["--package", "trunkline-nccl"])?;
    require_file(dir.join("libtrunkline_nccl.so"))
}

/// Returns the path of a plugin with feature `panics`: the one beside the tests if it was built with that feature, else
/// one in a target directory of its own.
///
/// # Errors
/// If neither exists and cargo cannot build it.
pub fn plugin_that_panics() -> io::Result<PathBuf> {
    let beside = plugin_path()?;
    let variable = b"TRUNKLINE_PANIC";
    if std::fs::read(&beside)?.windows(variable.len()).any(|bytes| bytes == variable) {
        return Ok(beside);
    }
    let dir = profile_dir()?;
    let name = dir.file_name().unwrap_or_default().to_owned();
    let dir = dir.parent().unwrap_or(&dir).join("panics").join(name);
    build(&dir, &["--package", "trunkline-nccl", "--features", "trunkline-nccl/panics"])?;
    require_file(dir.join("libtrunkline_nccl.so"))
}

/// Returns the path of the `trunkline` command that was built beside the tests, else of one that is built now. The
/// latter gets a directory of its own, because its build also writes the plugin, which another test could open half
/// written.
///
/// # Errors
/// If it does not exist and cargo cannot build it.
pub fn command_path() -> io::Result<PathBuf> {
    let dir = profile_dir()?;
    let built = dir.join("trunkline");
    if built.exists() {
        return Ok(built);
    }
    let name = dir.file_name().unwrap_or_default().to_owned();
    let dir = dir.parent().unwrap_or(&dir).join("command").join(name);
    build(&dir, &["--package", "trunkline-cli"])?;
    require_file(dir.join("trunkline"))
}

fn require_file(path: PathBuf) -> io::Result<PathBuf> {
    if path.exists() { Ok(path) } else { Err(io::Error::other(format!("{} is missing", path.display()))) }
}

/// Builds into a profile's output directory.
fn build(dir: &Path, args: &[&str]) -> io::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let profile = match dir.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--profile", profile]).args(args);
    command.arg("--target-dir").arg(dir.parent().unwrap_or(dir));
    let status = command.current_dir(env!("CARGO_MANIFEST_DIR")).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{command:?}: {status}"))) }
}

/// Records that a test could not run, with the reason, where `./test` counts it. A required fabric fails the test
/// instead.
///
/// # Panics
/// If `TRUNKLINE_REQUIRE` names the fabric, or the skip cannot be recorded.
pub fn skip_test(name: &str, fabric: &str, reason: &str) {
    use std::io::Write as _;
    let required = std::env::var("TRUNKLINE_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|word| word.trim() == fabric),
        "{name} must run, because TRUNKLINE_REQUIRE names {fabric}: {reason}"
    );
    println!("SKIPPED {name}: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| writeln!(file, "{name}: {reason}"));
        assert!(noted.is_ok(), "cannot record a skip in TRUNKLINE_SKIP_LOG: {noted:?}");
    }
}
