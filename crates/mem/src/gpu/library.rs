//! A driver's library, opened at run time to fill a table of functions. Never unloaded, because drivers start threads and install handlers in
//! this process.

use std::error::Error as _;
use std::ffi::{CStr, c_void};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use libloading::os::unix;

use super::GpuUnavailable;

/// Fills a table of functions from a library; each line has a field, the type of its function and the symbol.
macro_rules! table {
    ($library:expr, $types:ident; $($field:ident $kind:ident $symbol:literal)*) => { $types::Calls {
        $(
            // SAFETY: the symbol of this name is a function of the field's type, which `cargo xtask bindings` compares
            // with the vendor's header.
            $field: unsafe {
                std::mem::transmute::<std::ptr::NonNull<std::ffi::c_void>, $types::$kind>($library.find($symbol)?)
            },
        )*
    } };
}
pub(crate) use table;

/// An open library.
pub(crate) struct DynamicLibrary {
    name: String,
    open: ManuallyDrop<unix::Library>,
}

impl DynamicLibrary {
    /// Opens the first library of `names` that loads.
    ///
    /// # Errors
    /// [`GpuUnavailable::Library`], with the loader's error for each name.
    pub(crate) fn open(names: &[&CStr], package: &'static str) -> Result<Self, GpuUnavailable> {
        let mut reasons = Vec::new();
        for name in names {
            let name = name.to_string_lossy().into_owned();
            // SAFETY: this is a vendor's own library; its constructors run as in any program that is linked with it.
            match unsafe { unix::Library::new(&name) } {
                Ok(open) => return Ok(Self { name, open: ManuallyDrop::new(open) }),
                // The loader's text is the source of this error, not part of its message.
                Err(error) => reasons.push(error.source().map_or(error.to_string(), ToString::to_string)),
            }
        }
        let library = names.first().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Err(GpuUnavailable::Library { library, reason: reasons.join("; "), package })
    }

    /// Returns the address of a function of the library.
    ///
    /// # Errors
    /// [`GpuUnavailable::Symbol`].
    pub(crate) fn find(&self, symbol: &CStr) -> Result<NonNull<c_void>, GpuUnavailable> {
        // SAFETY: the symbol's address is only stored here, and not called or read.
        let found = unsafe { self.open.get::<*mut c_void>(symbol) };
        found.ok().and_then(|found| NonNull::new(found.as_raw_ptr())).ok_or_else(|| GpuUnavailable::Symbol {
            library: self.name.clone(),
            symbol: symbol.to_string_lossy().into_owned(),
        })
    }
}

/// Checks that a source loads exactly those symbols by [`table`], in order, and that the table has one field for each.
#[cfg(test)]
pub(crate) fn assert_loads<T>(source: &str, prefix: &str, symbols: &[&CStr]) {
    // Every field of the table is a pointer.
    assert_eq!(size_of::<T>() / size_of::<usize>(), symbols.len());
    let symbols: Vec<&str> = symbols.iter().map(|symbol| symbol.to_str().unwrap()).collect();
    assert_eq!(loaded(source, prefix), symbols);
}

/// Returns the symbols that a source loads by [`table`], in order; checks that field and type are named like the symbol.
#[cfg(test)]
fn loaded<'a>(source: &'a str, prefix: &str) -> Vec<&'a str> {
    let mut symbols = Vec::new();
    for line in source.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()) {
        let [field, kind, symbol] = line[..] else { continue };
        let Some(symbol) = symbol.strip_prefix("c\"").and_then(|symbol| symbol.strip_suffix('"')) else {
            continue;
        };
        let Some(name) = symbol.strip_prefix(prefix) else { continue };
        assert_eq!(kind, name.trim_end_matches("_v2"));
        assert_eq!(field.replace('_', ""), kind.to_lowercase());
        symbols.push(symbol);
    }
    symbols
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_library_that_opens_is_used() {
        let library =
            DynamicLibrary::open(&[c"libnothing-of-the-kind.so.1", c"libc.so.6"], "a C library").unwrap();
        assert!(library.find(c"getpid").is_ok());
        let error = library.find(c"cuInit").unwrap_err().to_string();
        assert!(error.contains("libc.so.6 has no cuInit"), "{error}");
    }

    #[test]
    fn missing_library_is_reported_with_its_package() {
        let names = [c"libnothing-of-the-kind.so.1", c"libnothing-else.so"];
        let Err(error) = DynamicLibrary::open(&names, "a driver") else { panic!("opened nothing") };
        let text = error.to_string();
        assert!(matches!(error, GpuUnavailable::Library { .. }), "{text}");
        assert!(text.contains("libnothing-of-the-kind.so.1 cannot be opened (libnothing"), "{text}");
        assert!(text.contains("No such file") && text.contains("; libnothing-else.so: "), "{text}");
        assert!(text.contains("install a driver"), "{text}");
    }
}
