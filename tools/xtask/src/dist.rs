//! `cargo xtask dist`: builds the files that users install, under `target/dist/`.
//!
//! Called by developers and packagers. It builds with the profile `dist`, whose files are smaller and faster than those
//! of `release` and take longer to build. The build uses a target folder of its own; nothing else is written outside
//! that and `target/dist/`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::shell;
use crate::workspace::Workspace;

/// The profile of the shipped files, defined in Cargo.toml.
const PROFILE: &str = "dist";

/// The target folder of this build: a profile's usual folder has the name of the profile, and `dist` is the folder of
/// the installed files.
const BUILD_FOLDER: &str = "dist-build";

/// The plugin's installed name. `NCCL_NET_PLUGIN` names it by its path, or by `trunkline` if its folder is searched.
const PLUGIN: &str = "libnccl-net-trunkline.so";

/// The library of OpenSHMEM as it is installed.
const SHMEM: &str = "libtrunkline-shmem.so";

/// The library that programs preload, as it is built and installed.
const FREE_HOOK: &str = "libtrunkline_freehook.so";

/// The folder of NVSHMEM's transport. It is separate, because the file has the name of one of NVSHMEM's own transports,
/// which it replaces if its folder is searched first.
const NVSHMEM: &str = "lib/nvshmem";

/// The installed names, one per version of the interface.
const NVSHMEM_NAMES: [&str; 2] = ["nvshmem_transport_libfabric.so.4", "nvshmem_transport_libfabric.so.6"];

/// The file for builds that use pkg-config, installed in `lib/pkgconfig`.
const PKG_CONFIG: &str = include_str!("../../../crates/shmem/trunkline-shmem.pc");

/// The file that RCCL loads for `NCCL_NET_PLUGIN=trunkline`. No `libnccl-net.so` or `librccl-net.so` is installed:
/// every program whose library path contains this folder would load those by default.
const PLUGIN_LINK: &str = "librccl-net-trunkline.so";

/// Builds and lays out the distribution.
///
/// # Errors
/// A build fails or a file cannot be written.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let packages =
        ["nccl", "shmem", "nvshmem", "freehook", "cli"].map(|name| format!("--package=trunkline-{name}"));
    let built = build_shipped(workspace, &packages.each_ref().map(String::as_str))?;
    let dist = workspace.target.join("dist");
    if dist.exists() {
        fs::remove_dir_all(&dist).with_context(|| format!("clearing {}", dist.display()))?;
    }
    lay_out(&built, &dist)?;
    copy_headers(&workspace.root.join("include"), &dist.join("include"))?;
    for package in &workspace.crates {
        copy_headers(&package.dir.join("include"), &dist.join("include"))?;
    }
    println!("{}", dist.display());
    Ok(())
}

/// Builds the packages that these arguments of `cargo build` name, as they are shipped; returns the folder of the
/// files. Measurements against peers also call it, because a plain release is built for a short first build.
///
/// # Errors
/// A build fails.
pub(crate) fn build_shipped(workspace: &Workspace, what: &[&str]) -> Result<PathBuf> {
    let folder = workspace.target.join(BUILD_FOLDER);
    let folder_name = folder.to_str().context("the path of the target folder is not UTF-8")?;
    let mut build = vec!["build", "--profile", PROFILE, "--target-dir", folder_name];
    build.extend(what);
    shell::run_cargo(&workspace.root, &build)?;
    Ok(folder.join(PROFILE))
}

fn lay_out(built: &Path, dist: &Path) -> Result<()> {
    copy_file(&built.join("libtrunkline_nccl.so"), &dist.join("lib").join(PLUGIN))?;
    std::os::unix::fs::symlink(PLUGIN, dist.join("lib").join(PLUGIN_LINK))
        .with_context(|| format!("linking {PLUGIN_LINK}"))?;
    copy_file(&built.join("libtrunkline_shmem.so"), &dist.join("lib").join(SHMEM))?;
    copy_file(&built.join(FREE_HOOK), &dist.join("lib").join(FREE_HOOK))?;
    let [first, others @ ..] = NVSHMEM_NAMES;
    copy_file(&built.join("libtrunkline_nvshmem.so"), &dist.join(NVSHMEM).join(first))?;
    for name in others {
        std::os::unix::fs::symlink(first, dist.join(NVSHMEM).join(name))
            .with_context(|| format!("linking {name}"))?;
    }
    for program in ["trunkline", "oshcc", "oshcxx", "oshrun"] {
        copy_file(&built.join(program), &dist.join("bin").join(program))?;
    }
    std::os::unix::fs::symlink("oshcxx", dist.join("bin/oshc++")).context("linking oshc++")?;
    let config = dist.join("lib/pkgconfig");
    fs::create_dir_all(&config).with_context(|| format!("creating {}", config.display()))?;
    let text = PKG_CONFIG.replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    fs::write(config.join("trunkline-shmem.pc"), text).context("writing trunkline-shmem.pc")
}

fn copy_headers(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(from).with_context(|| format!("listing {}", from.display()))? {
        let path = entry?.path();
        if let (true, Some(name)) = (path.is_dir(), path.file_name()) {
            copy_headers(&path, &to.join(name))?;
        }
        if let (Some("h" | "hpp" | "cuh"), Some(name)) =
            (path.extension().and_then(|e| e.to_str()), path.file_name())
        {
            copy_file(&path, &to.join(name))?;
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    fs::copy(from, to).with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn shipped_files_are_optimised_whole_and_stripped() {
        let manifest = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let profile = &manifest["profile"][PROFILE];
        assert_eq!(profile["lto"].as_str(), Some("fat"));
        assert_eq!(profile["codegen-units"].as_integer(), Some(1));
        assert_eq!(profile["strip"].as_str(), Some("symbols"));
        assert_eq!(profile["debug"].as_integer(), Some(0));
    }

    #[test]
    fn names_lead_to_the_plugin() {
        let dir = tempfile::tempdir().unwrap();
        let built = dir.path().join("built");
        let dist = dir.path().join("dist");
        fs::create_dir(&built).unwrap();
        fs::write(built.join("libtrunkline_nccl.so"), "so").unwrap();
        fs::write(built.join("libtrunkline_shmem.so"), "shmem").unwrap();
        fs::write(built.join("libtrunkline_nvshmem.so"), "nvshmem").unwrap();
        fs::write(built.join(FREE_HOOK), "hook").unwrap();
        for program in ["trunkline", "oshcc", "oshcxx", "oshrun"] {
            fs::write(built.join(program), "tool").unwrap();
        }
        lay_out(&built, &dist).unwrap();
        for name in [PLUGIN, PLUGIN_LINK] {
            assert_eq!(fs::read_to_string(dist.join("lib").join(name)).unwrap(), "so", "{name}");
        }
        let entries = fs::read_dir(dist.join("lib")).unwrap();
        let names: BTreeSet<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        let expected = ["nvshmem", "pkgconfig", FREE_HOOK, PLUGIN, PLUGIN_LINK, SHMEM].map(OsString::from);
        assert_eq!(names, BTreeSet::from(expected), "nothing that a program loads unasked");
        for program in ["trunkline", "oshcc", "oshc++", "oshrun"] {
            assert_eq!(fs::read_to_string(dist.join("bin").join(program)).unwrap(), "tool", "{program}");
        }
        for name in NVSHMEM_NAMES {
            assert_eq!(fs::read_to_string(dist.join("lib/nvshmem").join(name)).unwrap(), "nvshmem", "{name}");
            assert!(!dist.join("lib").join(name).exists(), "it is not in the way of NVSHMEM's own");
        }
        let config = fs::read_to_string(dist.join("lib/pkgconfig/trunkline-shmem.pc")).unwrap();
        assert!(
            config.contains(concat!("\nVersion: ", env!("CARGO_PKG_VERSION"), "\n")) && !config.contains('@')
        );
        // `crates/shmem/tests/osh.rs` tests the libraries that it names with real compilers.
        assert!(config.contains("-ltrunkline-shmem") && dist.join("lib").join(SHMEM).exists());
    }

    #[test]
    fn only_headers_are_copied() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().join("include");
        let to = dir.path().join("to");
        fs::create_dir_all(from.join("trunkline/device")).unwrap();
        fs::write(from.join("a.h"), "h").unwrap();
        fs::write(from.join("trunkline/device/b.h"), "h").unwrap();
        fs::write(from.join("notes.md"), "no").unwrap();
        copy_headers(&from, &to).unwrap();
        assert!(to.join("a.h").exists() && !to.join("notes.md").exists());
        assert!(to.join("trunkline/device/b.h").exists());
    }
}
