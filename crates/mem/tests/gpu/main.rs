//! Tests of GPU memory: driver calls and the use of their results, with fakes and with the drivers of this machine.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed setup step ends the test")]

mod amd;
mod fake;
mod nvidia;
mod real;

/// Returns how many open descriptors of this process are memory files of that name.
fn open_files(name: &str) -> usize {
    let link = format!("/memfd:{name} (deleted)");
    let all = std::fs::read_dir("/proc/self/fd").expect("the list of descriptors");
    all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|to| to.as_os_str() == &*link)
        .count()
}
