//! The fuzz target of this crate, and its seed inputs: the bytes of a configuration file, which are then the value of each
//! variable, too. A file that parses must print to a file with the same lines, and each setting has a value or an error.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use crate::rows::all_rows;
use crate::{
    FILE_BYTES_MAX, FoundValue, FrontEndKind, SettingKind, SettingSource, SettingValues, SettingsFile,
    find_unknown_names,
};

/// A target: its name, its check and its seeds. Mirrors `trunkline_proto::fuzzing::FuzzTarget`, which this crate does
/// not use.
pub type SettingsFuzzTarget = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// The targets of this crate.
pub const TARGETS: &[SettingsFuzzTarget] = &[("settings_file", check_settings, settings_seeds)];

const FRONT_ENDS: [FrontEndKind; 5] = [
    FrontEndKind::Nccl,
    FrontEndKind::OpenShmem,
    FrontEndKind::Nvshmem,
    FrontEndKind::Rust,
    FrontEndKind::Command,
];

/// The path of the file, with a character that no message may contain.
const PATH: &str = "/etc/\u{1b}.conf";

/// Runs the target of that name on an input.
///
/// # Panics
/// If the target is unknown, or when the code under test is wrong.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.0 == name);
    assert!(target.is_some(), "no fuzz target {name}");
    target.into_iter().for_each(|target| target.1(bytes));
}

fn check_settings(bytes: &[u8]) {
    let text = OsString::from_vec(bytes.to_vec());
    // One front end per input, for speed.
    let front_end = FRONT_ENDS[bytes.len() % FRONT_ENDS.len()];
    check_values(&SettingValues::from_lookup(front_end, |_| Some(text.clone())));
    match SettingsFile::parse(PATH, bytes) {
        Ok(file) => check_file(&file, bytes, front_end),
        Err(error) => check_message(&error.to_string()),
    }
}

fn check_file(file: &SettingsFile, bytes: &[u8], front_end: FrontEndKind) {
    assert!(bytes.len() <= FILE_BYTES_MAX);
    let source_lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').collect();
    let mut printed = String::new();
    let mut number = 1;
    for line in file.lines() {
        assert_eq!(file.find_line(&line.name), Some(line));
        let source = String::from_utf8_lossy(source_lines[line.number as usize - 1]);
        assert!(source.contains(&line.name) && source.contains(&line.value));
        while number < line.number {
            printed.push('\n');
            number += 1;
        }
        printed.push_str(&format!("{}={}", line.name, line.value));
    }
    assert_eq!(SettingsFile::parse(PATH, printed.as_bytes()).as_ref(), Ok(file));
    let values = SettingValues::from_lookup(front_end, |_| None).with_file(file.clone());
    check_values(&values);
    for row in all_rows().filter(|row| values.is_set(row)) {
        assert!(row.is_allowed_in_file(), "{} is set by a file", row.name);
    }
    for unknown in find_unknown_names(std::iter::empty(), Some(file)) {
        check_message(&unknown.to_string());
    }
}

/// Reads each row, by the reader's function for its type.
fn check_values(values: &SettingValues) {
    for row in all_rows() {
        match values.find(row) {
            Ok(FoundValue { value, source }) => {
                let is_set = matches!(source, SettingSource::Environment { .. } | SettingSource::File { .. });
                assert_eq!(is_set, values.is_set(row), "{}", row.name);
                assert!(value.is_empty() || row.kind.is_valid(&value), "{}={value}", row.name);
            }
            Err(error) => check_message(&error.to_string()),
        }
        let mut reader = values.reader();
        match row.kind {
            SettingKind::Switch | SettingKind::LooseSwitch => {
                reader.switch(row);
            }
            SettingKind::Number { max, .. }
            | SettingKind::Bytes { max, .. }
            | SettingKind::Milliseconds { max, .. } => assert!(reader.number(row) <= max),
            SettingKind::OptionalNumber { max } => {
                assert!(reader.optional_number(row).is_none_or(|number| number <= max));
            }
            SettingKind::Word(_) | SettingKind::WordOrNumber { .. } => {
                reader.choose(row, (), &[("auto", ())]);
            }
            SettingKind::Text { .. } | SettingKind::Path { .. } | SettingKind::Ignored { .. } => {
                reader.text(row);
            }
        }
        reader.reject(row, "another value");
        let errors = reader.finish(()).err();
        assert!(errors.is_some(), "{}: a rejected value is valid", row.name);
        errors
            .iter()
            .flat_map(|errors| errors.as_slice())
            .for_each(|error| check_message(&error.to_string()));
    }
    for table in [crate::rows::unused::nccl::ROWS, crate::rows::unused::sandia::ROWS] {
        values.describe_ignored(table).iter().for_each(|line| check_message(line));
    }
}

fn check_message(text: &str) {
    assert!(!text.contains(char::is_control), "{text:?} contains a control character");
    assert!(text.len() < 4096, "a message of {} bytes", text.len());
}

fn settings_seeds() -> Vec<Vec<u8>> {
    let texts = [
        "",
        "# comment\n\nTRUNKLINE_DEPTH=64\r\n\tTRUNKLINE_EAGER_MAX = 1.5K \n",
        "NCCL_IB_HCA==mlx5_0:1,mlx5_1\nNCCL_SOCKET_IFNAME=^lo,docker\nNCCL_IB_GID_INDEX=-1",
        "NVSHMEM_LIBFABRIC_PROVIDER=efa\nTRUNKLINE_ATOMICS=nic\nSHMEM_SYMMETRIC_SIZE=309485009821345069.000000000T",
        "TRUNKLINE_DEPTH=64\nTRUNKLINE_DEPTH=128\n",
        "TRUNKLINE_JOB_RANK=1",
        "export TRUNKLINE_DEPTH=64",
        "TRUNKLINE_FABRIC=\"soft\"",
        "[network]",
        "TRUNKLINE_DEPTH",
        "TRUNKLINE_DEPHT=64\nNCCL_DEBUG_FILE=x\nA\u{1b}=1",
        "TRUNKLINE_TRACE= /tmp/\u{1b}[31m \nTRUNKLINE_IB_PKEY=0x7fff\nTRUNKLINE_DEPTH=\u{7f}",
        "TRUNKLINE_CONF=none",
        "NCCL_IB_QPS_PER_CONNECTION=8\nRCCL_IB_COMM_NGROUPS=0\nRCCL_ANP_QP_DEPTH_MULTIPLIER=255\nNCCL_IB_ADAPTIVE_ROUTING=-2",
        "TRUNKLINE_PEER_TIME_MS=3600000\nTRUNKLINE_SHARED_HEAP=4\nTRUNKLINE_STATUS=2\nNVSHMEM_DISABLE_GDRCOPY=no\nSMA_DEBUG=1",
        "SHMEM_BOUNCE_SIZE=64K\nNCCL_DMABUF_ENABLE=0\nNVSHMEM_HCA_LIST=\u{9b}31m",
        "0x10",
        "16777215.999999999 tib",
        "-1",
    ];
    let mut seeds: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    let lines = |before: usize| format!("{}TRUNKLINE_DEPTH=64", "\n".repeat(before));
    let long = |bytes: usize| format!("A={}", "x".repeat(bytes - 2));
    seeds.extend([lines(999), lines(1_000), long(4_096), long(4_097)].map(String::into_bytes));
    seeds.extend([b"A=\xff".to_vec(), b"A=1\0".to_vec()]);
    seeds
}
