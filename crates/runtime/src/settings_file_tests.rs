use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use super::*;

/// A folder with one configuration file.
struct TestFile {
    folder: tempfile::TempDir,
}

impl TestFile {
    fn new(text: &str, mode: u32) -> Self {
        let file = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::write(file.path(), text).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("trunkline.conf")
    }

    fn open(&self, origin: PathOrigin) -> Result<(Option<SettingsFile>, Vec<String>), String> {
        let mut warnings = Vec::new();
        let identity = ProcessIdentity::of_this_process();
        let opened = open_settings_file(&self.path(), origin, identity, &mut warnings);
        opened.map(|file| (file, warnings)).map_err(|error| error.to_string())
    }
}

fn values_with_file(path: &str) -> SettingValues {
    SettingValues::from_lookup(trunkline_settings::FrontEndKind::Command, |name| {
        (name == "TRUNKLINE_CONF").then(|| path.into())
    })
}

const BOTH: [PathOrigin; 2] = [PathOrigin::Requested, PathOrigin::Default];

#[test]
fn file_that_others_may_change_is_refused() {
    for (mode, requested, default) in
        [(0o644, true, true), (0o600, true, true), (0o664, true, false), (0o646, false, false)]
    {
        let file = TestFile::new("TRUNKLINE_DEPTH=64", mode);
        for (origin, is_used) in BOTH.into_iter().zip([requested, default]) {
            match file.open(origin) {
                Ok((found, warnings)) => {
                    assert!(is_used && warnings.is_empty(), "{mode:o} {origin:?}");
                    assert_eq!(found.unwrap().find_line("TRUNKLINE_DEPTH").unwrap().value, "64");
                }
                Err(error) => {
                    assert!(!is_used, "{mode:o} {origin:?}: {error}");
                    assert!(error.contains(&format!("has mode {mode:04o}")) && error.contains("chmod go-w"));
                }
            }
        }
    }
}

#[test]
fn missing_file_is_an_error_only_if_it_was_requested() {
    let file = TestFile::new("", 0o644);
    std::fs::remove_file(file.path()).unwrap();
    assert_eq!(file.open(PathOrigin::Default).unwrap(), (None, Vec::new()));
    let error = file.open(PathOrigin::Requested).unwrap_err();
    assert!(
        error.contains("cannot read the configuration file") && error.contains("No such file"),
        "{error}"
    );
}

#[test]
fn fifo_and_folder_are_refused_without_blocking() {
    for make in [
        |path: &Path| {
            rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)
                .unwrap();
        },
        |path: &Path| std::fs::create_dir(path).unwrap(),
    ] {
        let file = TestFile::new("", 0o644);
        std::fs::remove_file(file.path()).unwrap();
        make(&file.path());
        for origin in BOTH {
            let error = file.open(origin).unwrap_err();
            assert!(error.contains("is no regular file"), "{error}");
        }
    }
}

#[test]
fn null_device_and_none_mean_no_file() {
    let mut warnings = Vec::new();
    let identity = ProcessIdentity::of_this_process();
    let null =
        open_settings_file(Path::new("/dev/null"), PathOrigin::Requested, identity, &mut warnings).unwrap();
    assert_eq!((null, warnings), (None, Vec::new()));
    assert_eq!(read_settings_file(&values_with_file("none"), identity, &mut Vec::new()).unwrap(), None);
}

#[test]
fn program_with_raised_rights_reads_no_file() {
    let file = TestFile::new("TRUNKLINE_DEPTH=64", 0o644);
    let values = values_with_file(file.path().to_str().unwrap());
    let own = ProcessIdentity::of_this_process();
    let own = ProcessIdentity { effective_user: own.real_user, effective_group: own.real_group, ..own };
    let read = |identity, values: &SettingValues| read_settings_file(values, identity, &mut Vec::new());
    assert!(read(own, &values).unwrap().is_some());
    for raised in [
        ProcessIdentity { real_user: own.real_user + 1, ..own },
        ProcessIdentity { real_group: own.real_group + 1, ..own },
    ] {
        assert_eq!(read(raised, &values).unwrap(), None, "{raised:?}");
        // Its user learns nothing about a file that only the program may read.
        assert_eq!(read(raised, &values_with_file("/nonexistent/trunkline.conf")).unwrap(), None);
    }
    assert!(read(own, &values_with_file("/nonexistent/trunkline.conf")).is_err());
}

#[test]
fn file_of_another_user_names_no_code() {
    let file = TestFile::new("", 0o644);
    let mut stat = rustix::fs::stat(file.path()).unwrap();
    let identity = ProcessIdentity { effective_user: 1000, ..ProcessIdentity::of_this_process() };
    for (owner, may) in [(0, true), (1000, true), (1001, false)] {
        stat.st_uid = owner;
        assert_eq!(may_name_code(&stat, identity), may, "{owner}");
    }
}

#[test]
fn path_is_escaped_in_messages() {
    let values = values_with_file("/nonexistent/\u{1b}[31m");
    let error = read_settings_file(&values, ProcessIdentity::of_this_process(), &mut Vec::new());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("/nonexistent/\\u{1b}[31m") && !error.contains('\u{1b}'), "{error}");
}

#[test]
fn file_of_more_than_64_kib_is_refused() {
    let line = format!("#{}\n", "x".repeat(4095 - 2));
    let file = TestFile::new(&line.repeat(17), 0o644);
    assert!(file.open(PathOrigin::Requested).unwrap_err().contains("at most 64 KiB"));
    let file = TestFile::new(&line.repeat(16), 0o644);
    assert!(file.open(PathOrigin::Requested).is_ok());
}

#[test]
fn link_to_a_file_is_followed() {
    let target = TestFile::new("TRUNKLINE_DEPTH=64", 0o644);
    let link = TestFile::new("", 0o644);
    std::fs::remove_file(link.path()).unwrap();
    std::os::unix::fs::symlink(target.path(), link.path()).unwrap();
    assert!(link.open(PathOrigin::Default).unwrap().0.is_some());
}

#[test]
fn file_that_a_group_may_change_names_no_code() {
    let text = "TRUNKLINE_OFI_LIBRARY=/tmp/lib.so\nTRUNKLINE_DEPTH=64";
    let (found, warnings) = TestFile::new(text, 0o664).open(PathOrigin::Requested).unwrap();
    let found = found.unwrap();
    assert!(
        found.find_line("TRUNKLINE_OFI_LIBRARY").is_none() && found.find_line("TRUNKLINE_DEPTH").is_some()
    );
    assert!(warnings.len() == 1 && warnings[0].contains("TRUNKLINE_OFI_LIBRARY is not used"), "{warnings:?}");
    let (found, warnings) = TestFile::new(text, 0o644).open(PathOrigin::Requested).unwrap();
    assert!(found.unwrap().find_line("TRUNKLINE_OFI_LIBRARY").is_some() && warnings.is_empty());
}
