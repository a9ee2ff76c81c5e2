//! The names of this process's environment that begin as ours do, for warnings about names that are no settings.
//!
//! They are read from /proc, with little memory: the list of the standard library aborts the process if a large environment finds
//! none. So names that the program itself has added are not among them; their values are read as those of all others.

use std::fs::File;
use std::io::{BufReader, Read};

/// The first letters of all own names.
const PREFIX: &[u8] = b"TRUNKLINE_";
/// Most bytes of a name; a longer one is cut.
const NAME_BYTES_MAX: usize = 128;
/// Most names; no process has that many settings.
const NAMES_MAX: usize = 256;
/// Bytes that are read at a time.
const BUFFER_BYTES: usize = 1024;

/// Returns the names with which this process was started. Without /proc there are none.
pub(crate) fn read_own_names() -> Vec<String> {
    File::open("/proc/self/environ").map_or_else(|_| Vec::new(), parse_names)
}

/// Parses `NAME=value` texts that end with a zero byte.
fn parse_names(environment: impl Read) -> Vec<String> {
    let mut names = Vec::new();
    let mut name = Vec::new();
    let mut is_name = true;
    let bytes = BufReader::with_capacity(BUFFER_BYTES, environment).bytes();
    for byte in bytes.map_while(Result::ok) {
        match byte {
            b'=' if is_name => {
                if name.starts_with(PREFIX) && names.len() < NAMES_MAX {
                    names.push(String::from_utf8_lossy(&name).into_owned());
                }
                is_name = false;
            }
            0 => {
                name.clear();
                is_name = true;
            }
            _ if is_name && name.len() < NAME_BYTES_MAX => name.push(byte),
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_names_are_found_beside_others() {
        let long = format!("TRUNKLINE_{}", "X".repeat(200));
        let text = format!(
            "HOME=/TRUNKLINE_A=b\0TRUNKLINE_DEPTH=32=TRUNKLINE_B\0TRUNKLINE_C\0=TRUNKLINE_D=\0TRUNKLINE_EMPTY=\0{long}=1\0TRUNKLINE_CUT"
        );
        assert_eq!(
            parse_names(text.as_bytes()),
            ["TRUNKLINE_DEPTH", "TRUNKLINE_EMPTY", &long[..NAME_BYTES_MAX]]
        );
    }

    #[test]
    fn number_of_names_is_limited() {
        let text: String = (0..300).map(|at| format!("TRUNKLINE_{at}=\0")).collect();
        assert_eq!(parse_names(text.as_bytes()).len(), NAMES_MAX);
    }
}
