use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<Vec<(String, String)>, String> {
    let file = SettingsFile::parse("f", text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(file.lines().iter().map(|line| (line.name.clone(), line.value.clone())).collect())
}

#[test]
fn lines_end_at_the_first_equals_sign() {
    let text = "# comment\n\n  A_1 = b c \r\nNCCL_IB_HCA==mlx5_0:1,x#y\nEMPTY=\n\t#x=y";
    let pairs = [("A_1", "b c"), ("NCCL_IB_HCA", "=mlx5_0:1,x#y"), ("EMPTY", "")];
    assert_eq!(parse(text).unwrap(), pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

#[test]
fn faults_name_the_line() {
    for (text, error) in [
        ("A=1\nB", "f:2: the line has no =; write NAME = value, or # before a comment"),
        ("export A=1", "f:1: the file is not a shell script; write NAME = value, or # before a comment"),
        ("A='1'", "f:1: quotes would be part of the value; write NAME = value, or # before a comment"),
        ("[network]", "f:1: there are no sections; write NAME = value, or # before a comment"),
        ("A\0=1", "f:1: the line contains a zero byte; write NAME = value, or # before a comment"),
        ("a b=1", "f:1: a name consists of letters, digits and _; write NAME = value, or # before a comment"),
        ("=1", "f:1: a name consists of letters, digits and _; write NAME = value, or # before a comment"),
        ("A=1\n#\nA=1", "f:3: A is set in line 1 already; remove one of the two"),
        (
            "TRUNKLINE_JOB_RANK=1",
            "f:1: TRUNKLINE_JOB_RANK cannot be set in a file, because it differs between processes; set it in the environment",
        ),
    ] {
        assert_eq!(parse(text).unwrap_err(), error);
    }
    let name = "A".repeat(4000);
    let error = parse(&format!("{name}=1\n{name}=1")).unwrap_err();
    assert!(error.contains("... is set in line 1 already") && error.len() < 250, "{error}");
    let error = SettingsFile::parse("f", b"A=\xff").unwrap_err();
    assert!(matches!(error, FileError::Line { line: 1, fault: "the line is not UTF-8", .. }), "{error}");
}

#[test]
fn limits_of_a_file_are_exact() {
    assert!(parse(&format!("A={}", "x".repeat(4094))).is_ok());
    assert!(parse(&format!("A={}", "x".repeat(4095))).is_err());
    let lines = |count: usize| (0..count).map(|n| format!("A{n}=1\n")).collect::<String>();
    assert_eq!(parse(&lines(1000)).unwrap().len(), 1000);
    let long = "f: a configuration file has at most 64 KiB and 1000 lines";
    assert_eq!(parse(&lines(1001)).unwrap_err(), long);
    assert!(parse(&"\n".repeat(1000)).is_ok() && parse(&"\n".repeat(1001)).is_err());
    assert_eq!(parse(&format!("{}\n\nB=1", lines(1000))).unwrap_err(), long);
    assert!(parse(&"#\n".repeat(32 << 10)[..1 << 10]).is_ok());
    let wide = |bytes: usize| format!("#{}\n", "x".repeat(4094)).repeat(17)[..bytes].to_owned();
    assert!(parse(&wide(64 << 10)).is_ok());
    assert_eq!(parse(&wide((64 << 10) + 1)).unwrap_err(), long);
}

#[test]
fn rows_for_the_environment_are_refused_under_each_name() {
    for row in crate::rows::all_rows() {
        for name in std::iter::once(row.name).chain(row.aliases.iter().map(|alias| alias.name)) {
            let parsed = SettingsFile::parse("f", format!("{name}=1").as_bytes());
            assert_eq!(parsed.is_ok(), row.is_allowed_in_file(), "{name}: {parsed:?}");
        }
    }
    for name in ["TRUNKLINE_JOB_SECRET", "CUDA_VISIBLE_DEVICES", "RANK", "TRUNKLINE_CONF", "TRUNKLINE_PANIC"]
    {
        assert!(parse(&format!("{name}=1")).unwrap_err().contains("cannot be set in a file"), "{name}");
    }
}

#[test]
fn path_is_escaped_in_messages() {
    let error = SettingsFile::parse("/tmp/\u{1b}[31m", b"x").unwrap_err().to_string();
    assert!(error.starts_with("/tmp/\\u{1b}[31m:1: the line has no ="), "{error}");
}

#[test]
fn removed_rows_no_longer_count() {
    let mut file = SettingsFile::parse("f", b"TRUNKLINE_OFI_LIBRARY=/tmp/x.so\nTRUNKLINE_DEPTH=64").unwrap();
    let removed = file.remove_rows(|row| row.usage == crate::SettingUse::LoadsCode);
    assert_eq!(removed, ["TRUNKLINE_OFI_LIBRARY"]);
    assert!(file.find_line("TRUNKLINE_OFI_LIBRARY").is_none() && file.find_line("TRUNKLINE_DEPTH").is_some());
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
        if let Ok(file) = SettingsFile::parse("f", &bytes) {
            prop_assert!(file.lines().iter().all(|line| !line.name.is_empty() && !line.value.contains('\n')));
        }
    }
}
