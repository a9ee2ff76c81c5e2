//! Finds the plugin to bench. Called by `cmd`; it looks at names only and loads nothing.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// Environment variable that names the plugin.
pub(crate) const VARIABLE: &str = "TRUNKLINE_PLUGIN";
/// Where a build and an installation put it, from the directory of this program.
const PLACES: [&str; 3] =
    ["libtrunkline_nccl.so", "deps/libtrunkline_nccl.so", "../lib/libnccl-net-trunkline.so"];

/// There is no plugin.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum LocateError {
    /// The file that was named is not there.
    #[error("{} (from {origin}) does not exist", .path.display())]
    Named {
        /// The file.
        path: PathBuf,
        /// Who named it.
        origin: &'static str,
    },
    /// None of the usual files is there.
    #[error("no plugin found; looked for {}; name one with --plugin or {VARIABLE}", list(.tried))]
    Nowhere {
        /// The files looked for.
        tried: Vec<PathBuf>,
    },
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}

/// The plugin's file: the one asked for, else the environment's, else the one next to this program.
pub(crate) fn find_plugin(asked: Option<&Path>) -> Result<PathBuf, LocateError> {
    if let Some(path) = asked {
        return existing_path(path, "--plugin");
    }
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return existing_path(Path::new(&path), VARIABLE);
    }
    let program = std::env::current_exe().unwrap_or_default();
    let directory = program.parent().unwrap_or(Path::new("."));
    let tried: Vec<PathBuf> = PLACES.iter().map(|place| directory.join(place)).collect();
    // A build leaves it in one of the first two places, depending on what was asked for; the newer one counts.
    let age = |path: &&PathBuf| path.metadata().and_then(|file| file.modified()).ok();
    let built = tried[..2].iter().filter(|path| path.exists()).max_by_key(age);
    match built.or(tried[2..].iter().find(|path| path.exists())) {
        Some(path) => existing_path(path, "the program's directory"),
        None => Err(LocateError::Nowhere { tried }),
    }
}

/// The absolute path, because the dynamic linker searches elsewhere for a bare name.
fn existing_path(path: &Path, origin: &'static str) -> Result<PathBuf, LocateError> {
    path.canonicalize().map_err(|_| LocateError::Named { path: path.to_path_buf(), origin })
}
