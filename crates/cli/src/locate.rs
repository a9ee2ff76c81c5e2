//! Finds the plugin to benchmark. Called by `cmd`; it checks only names and loads nothing.

use std::path::{Path, PathBuf};

use thiserror::Error;
use trunkline_runtime::ChooseError;
use trunkline_settings::rows::command;

use crate::own_settings::read_setting;

/// Environment variable that names the plugin.
pub(crate) const VARIABLE: &str = command::PLUGIN.name;
/// Paths of the plugin after a build and after an installation, relative to this program's directory.
const PLACES: [&str; 3] =
    ["libtrunkline_nccl.so", "deps/libtrunkline_nccl.so", "../lib/libnccl-net-trunkline.so"];

/// The plugin was not found.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum LocateError {
    /// The named file does not exist.
    #[error("the plugin {} (from {origin}) does not exist", .path.display())]
    Named {
        /// The file.
        path: PathBuf,
        /// The option or variable that named it.
        origin: &'static str,
    },
    /// The setting or the configuration file is invalid.
    #[error(transparent)]
    Setting(#[from] ChooseError),
    /// None of the usual files exists.
    #[error("no plugin found: none of {} exists; name one with --plugin or {VARIABLE}", list(.tried))]
    Nowhere {
        /// The files that were checked.
        tried: Vec<PathBuf>,
    },
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}

/// Returns the plugin's file: the requested one, else the environment's, else the one next to this program.
pub(crate) fn find_plugin(asked: Option<&Path>) -> Result<PathBuf, LocateError> {
    if let Some(path) = asked {
        return existing_path(path, "--plugin");
    }
    if let Some(path) = read_setting(&command::PLUGIN)? {
        return existing_path(Path::new(&path), VARIABLE);
    }
    let program = std::env::current_exe().unwrap_or_default();
    let directory = program.parent().unwrap_or(Path::new("."));
    let tried: Vec<PathBuf> = PLACES.iter().map(|place| directory.join(place)).collect();
    // A build leaves the plugin in one of the first two places, depending on its target; the newer file is used.
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
