//! Files that a plugin writes for its user, such as a trace. A variable names a directory for each rank to the
//! plugin; after everything is closed, the rank sends the files in it to the parent. Used by `launch` on one end and
//! by `rank` on the other; it does not interpret the files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::rendezvous::FromRank;

/// Bytes of a file in one message, at most.
const PART: usize = 8 << 20;
/// Bytes of one rank's files, at most.
const BYTES_MAX: u64 = 2 << 30;
/// Files of a rank, at most.
const FILES_MAX: usize = 64;

/// The files of a run to keep beside its results.
#[derive(Clone, Debug)]
pub struct KeptFiles {
    /// The environment variable that names the directory to the plugin.
    pub variable: &'static str,
    /// A directory of this host; each rank that is started here gets a subdirectory.
    pub directory: PathBuf,
}

impl KeptFiles {
    /// Returns the directory of a rank.
    pub(crate) fn rank_directory(&self, rank: usize) -> PathBuf {
        self.directory.join(format!("rank{rank}"))
    }
}

/// The contents of the files that one rank's plugin has written, in the order of their names.
pub type LeftFiles = Vec<String>;

/// Passes every file of a directory to `say`, in parts. A missing directory counts as empty.
pub(crate) fn send_files<E: From<io::Error>>(
    directory: &Path,
    mut say: impl FnMut(&FromRank) -> Result<(), E>,
) -> Result<(), E> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut paths: Vec<PathBuf> = Vec::new();
    let mut bytes = 0;
    for entry in entries {
        let entry = entry?;
        let about = entry.metadata()?;
        if about.is_file() {
            bytes += about.len();
            paths.push(entry.path());
        }
    }
    if bytes > BYTES_MAX || paths.len() > FILES_MAX {
        let told = format!("the plugin left {} files of {bytes} bytes, more than can be kept", paths.len());
        return Err(io::Error::other(told).into());
    }
    paths.sort_unstable();
    for path in paths {
        let text = fs::read(&path)?;
        let text = String::from_utf8_lossy(&text);
        let mut rest = text.as_ref();
        let mut begins = true;
        while begins || !rest.is_empty() {
            let mut cut = rest.len().min(PART);
            while !rest.is_char_boundary(cut) {
                cut -= 1;
            }
            let (part, behind) = rest.split_at(cut);
            say(&FromRank::Left { begins, text: part.to_owned() })?;
            (rest, begins) = (behind, false);
        }
    }
    Ok(())
}

/// Appends a part; returns `false` if a rank exceeds the limits.
pub(crate) fn take_part(left: &mut LeftFiles, begins: bool, text: &str) -> bool {
    let bytes: usize = left.iter().map(String::len).sum();
    if begins {
        left.push(String::new());
    }
    // Invalid characters were replaced by longer ones, hence the factor.
    if bytes as u64 > 3 * BYTES_MAX || left.len() > FILES_MAX {
        return false;
    }
    left.last_mut().is_some_and(|last| {
        last.push_str(text);
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(directory: &Path) -> io::Result<(LeftFiles, usize)> {
        let mut left = LeftFiles::new();
        let mut parts = 0;
        send_files(directory, |message| {
            let FromRank::Left { begins, text } = message else { return Err(io::Error::other("another")) };
            parts += 1;
            assert!(take_part(&mut left, *begins, text));
            Ok(())
        })?;
        Ok((left, parts))
    }

    #[test]
    fn files_arrive_whole_and_in_order() {
        let directory = std::env::temp_dir().join(format!("trunkline-left-{}", std::process::id()));
        assert_eq!(told(&directory).unwrap(), (LeftFiles::new(), 0), "a missing directory counts as empty");
        fs::create_dir_all(directory.join("below")).unwrap();
        // Two bytes per letter, so that a part would end inside a letter.
        let long = format!("x{}", "\u{e9}".repeat(PART / 2 + 7));
        for (name, text) in [("b", long.as_str()), ("a", "short"), ("c", "")] {
            fs::write(directory.join(name), text).unwrap();
        }
        let (left, parts) = told(&directory).unwrap();
        assert!(left == ["short", long.as_str(), ""]);
        assert_eq!(parts, 4);
        for file in 0..FILES_MAX {
            fs::write(directory.join(format!("more{file}")), "").unwrap();
        }
        assert!(told(&directory).unwrap_err().to_string().contains("67 files"));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn parts_beyond_the_limits_are_refused() {
        let mut left = LeftFiles::new();
        assert!(!take_part(&mut left, false, "no beginning"));
        for _ in 0..FILES_MAX {
            assert!(take_part(&mut left, true, ""));
        }
        assert!(!take_part(&mut left, true, ""));
    }
}
