//! A loaded plugin: the library, and its table of one version.
//!
//! Opened by ranks and by tests; all other code reaches the plugin through it. It never initializes the plugin
//! (`PluginContext::init` does, once per communicator) and never unloads the library while an object of it exists.

use std::ffi::{CStr, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use thiserror::Error;

use crate::abi::{self, NetAbi, PluginCallError, VERSIONS};
use crate::properties::NetProperties;

/// Why a plugin could not be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The dynamic linker rejected the file.
    #[error("cannot load the plugin {}: {source}", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The linker's text.
        source: libloading::Error,
    },
    /// The library exports no table of a version that this host supports.
    #[error("{} exports no ncclNetPlugin_v{} to _v{}", .path.display(), VERSIONS[VERSIONS.len() - 1], VERSIONS[0])]
    NoTable {
        /// The file.
        path: PathBuf,
    },
    /// The library exports tables, but not the requested version.
    #[error("{} exports no ncclNetPlugin_v{asked}; it has {}", .path.display(), format_versions(.found))]
    NoSuchVersion {
        /// The file.
        path: PathBuf,
        /// The requested version.
        asked: u8,
        /// The exported versions.
        found: Vec<u8>,
    },
}

/// A loaded plugin.
pub struct NetPlugin {
    /// Declared before the library, so that it is dropped first.
    table: Box<dyn NetAbi>,
    _library: Library,
}

impl NetPlugin {
    /// Loads a plugin, and uses its newest table or that of the requested version.
    pub fn load(path: &Path, version: Option<u8>) -> Result<Arc<Self>, LoadError> {
        // SAFETY: loading runs the library's initializers, which the user who names a plugin accepts.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|source| LoadError::Open { path: path.to_path_buf(), source })?;
        let wanted = VERSIONS.into_iter().filter(|v| version.is_none_or(|asked| asked == *v));
        for candidate in wanted {
            if let Some(table) = abi::find_table(&library, candidate) {
                return Ok(Arc::new(Self { table, _library: library }));
            }
        }
        let found: Vec<u8> =
            VERSIONS.into_iter().filter(|v| abi::find_table(&library, *v).is_some()).collect();
        let path = path.to_path_buf();
        match version {
            Some(asked) if !found.is_empty() => Err(LoadError::NoSuchVersion { path, asked, found }),
            _ => Err(LoadError::NoTable { path }),
        }
    }

    /// Returns the version of the table in use.
    pub fn version(&self) -> u8 {
        self.table.version()
    }

    /// Returns the name that the plugin has in its table.
    pub fn name(&self) -> String {
        let name = self.table.name();
        if name.is_null() {
            return String::from("unnamed");
        }
        // SAFETY: the table's name is a NUL-terminated string of the loaded library.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }

    /// Returns the number of devices; call this after an `init`.
    pub fn devices(&self) -> Result<c_int, PluginCallError> {
        // SAFETY: devices needs only a place for the count, which the shim provides.
        unsafe { self.table.devices() }
    }

    /// Returns the properties of a device; call this after an `init`.
    pub fn properties(&self, dev: c_int) -> Result<NetProperties, PluginCallError> {
        // SAFETY: getProperties needs only a place for the properties, which the shim provides.
        unsafe { self.table.properties(dev) }
    }

    pub(crate) fn abi_table(&self) -> &dyn NetAbi {
        self.table.as_ref()
    }
}

impl std::fmt::Debug for NetPlugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin").field("name", &self.name()).field("version", &self.version()).finish()
    }
}

/// Formats a list of versions for a message.
fn format_versions(versions: &[u8]) -> String {
    let names: Vec<String> = versions.iter().map(|v| format!("v{v}")).collect();
    names.join(", ")
}
