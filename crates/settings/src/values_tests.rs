use std::os::unix::ffi::OsStringExt as _;

use super::*;
use crate::rows::{connections, job, network, nvshmem, one_sided, rdma, shmem, unused};

fn values_of(front_end: FrontEndKind, set: &[(&str, &str)]) -> SettingValues {
    SettingValues::from_lookup(front_end, |name| {
        set.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).into())
    })
}

fn nccl(set: &[(&str, &str)]) -> SettingValues {
    values_of(FrontEndKind::Nccl, set)
}

fn value_of(values: &SettingValues, row: &SettingRow) -> String {
    values.find(row).unwrap().value
}

#[test]
fn own_name_precedes_an_alias_in_one_source() {
    let both = nccl(&[("RCCL_IB_QPS_PER_P2P", "2"), ("TRUNKLINE_P2P_LINKS_PER_RAIL", "3")]);
    assert_eq!(value_of(&both, &connections::P2P_LINKS_PER_RAIL), "3");
    // The first alias precedes the second, and a name without effect is not checked.
    let aliases = nccl(&[("RCCL_ANP_QP_DEPTH_MULTIPLIER", "3"), ("RCCL_IB_QP_DEPTH_MULTIPLIER", "x")]);
    assert_eq!(value_of(&aliases, &connections::QP_DEPTH_MULTIPLIER), "3");
}

#[test]
fn environment_alias_precedes_own_name_in_the_file() {
    let file = || SettingsFile::parse("/etc/t.conf", b"TRUNKLINE_IB_TC=3\n TRUNKLINE_DEPTH = 64 ").unwrap();
    let found = nccl(&[("NCCL_IB_TC", "7")]).with_file(file()).find(&rdma::TRAFFIC_CLASS).unwrap();
    let source = SettingSource::Environment { name: "NCCL_IB_TC" };
    assert_eq!(found, FoundValue { value: "7".to_owned(), source });
    let found = nccl(&[]).with_file(file()).find(&connections::DEPTH).unwrap();
    let source = SettingSource::File { name: "TRUNKLINE_DEPTH", path: "/etc/t.conf".to_owned(), line: 2 };
    assert_eq!(found, FoundValue { value: "64".to_owned(), source });
}

#[test]
fn blank_value_counts_as_unset() {
    for blank in ["", " ", "\t\n"] {
        let values =
            nccl(&[("TRUNKLINE_DEPTH", blank), ("TRUNKLINE_HOST_ROOT", blank), ("NCCL_IB_TC", blank)]);
        for row in [&connections::DEPTH, &network::HOST_ROOT, &rdma::TRAFFIC_CLASS] {
            let found = values.find(row).unwrap();
            assert_eq!(
                (found.value.as_str(), found.source),
                (row.default, SettingSource::Default),
                "{blank:?}"
            );
        }
        // A blank own name does not hide an alias.
        let values = nccl(&[("TRUNKLINE_IB_TC", blank), ("NCCL_IB_TC", "5")]);
        assert_eq!(value_of(&values, &rdma::TRAFFIC_CLASS), "5");
    }
    let values = nccl(&[("TRUNKLINE_DEPTH", " 64 ")]);
    assert_eq!(value_of(&values, &connections::DEPTH), "64");
}

#[test]
fn empty_list_of_gpus_is_a_value() {
    let values = nccl(&[("CUDA_VISIBLE_DEVICES", "")]);
    assert!(values.is_set(&job::CUDA_DEVICES));
    assert_eq!(values.reader().text(&job::CUDA_DEVICES), Some(String::new()));
    assert_eq!(values.reader().text(&job::HIP_DEVICES), None);
}

#[test]
fn default_of_a_front_end_yields_to_an_alias() {
    let row = &one_sided::ATOMICS;
    let found = values_of(FrontEndKind::Nvshmem, &[]).find(row).unwrap();
    assert_eq!(
        (found.value.as_str(), found.source),
        ("owner", SettingSource::FrontEnd(FrontEndKind::Nvshmem))
    );
    assert_eq!(value_of(&values_of(FrontEndKind::Rust, &[]), row), "auto");
    assert_eq!(value_of(&values_of(FrontEndKind::Nvshmem, &[("TRUNKLINE_ATOMICS", "nic")]), row), "nic");
    let own = SettingRow::new(
        "TRUNKLINE_T",
        crate::SettingGroup::Rdma,
        rdma::TRAFFIC_CLASS.kind,
        "1",
        "a row of this test",
    )
    .aliases(rdma::TRAFFIC_CLASS.aliases)
    .own_defaults(&[(FrontEndKind::Nccl, "2")]);
    let in_file = |text: &str| nccl(&[]).with_file(SettingsFile::parse("f", text.as_bytes()).unwrap());
    assert_eq!(value_of(&nccl(&[]), &own), "2");
    assert_eq!(value_of(&nccl(&[("NCCL_IB_TC", "7")]), &own), "7");
    assert_eq!(value_of(&in_file("NCCL_IB_TC=8"), &own), "8");
    assert_eq!(value_of(&in_file("TRUNKLINE_T=9"), &own), "9");
    // An alias of one front end only.
    let set = [("NVSHMEM_LIBFABRIC_PROVIDER", "efa")];
    assert_eq!(value_of(&values_of(FrontEndKind::Nvshmem, &set), &network::FABRIC), "ofi:efa");
    assert_eq!(value_of(&nccl(&set), &network::FABRIC), "auto");
}

#[test]
fn error_names_the_variable_that_was_set() {
    let error = |set: &[(&str, &str)], row| nccl(set).find(row).unwrap_err().to_string();
    assert_eq!(
        error(&[("TRUNKLINE_DEPTH", "31")], &connections::DEPTH),
        "TRUNKLINE_DEPTH=31: expected a number from 32 to 32768"
    );
    assert_eq!(
        error(&[("RCCL_IB_COMM_NGROUPS", "9")], &connections::QP_GROUPS),
        "RCCL_IB_COMM_NGROUPS=9: expected a number from 0 to 8"
    );
    assert_eq!(
        error(&[("NCCL_IB_ADDR_FAMILY", "4\n")], &rdma::ADDR_FAMILY),
        "NCCL_IB_ADDR_FAMILY=4: expected AF_INET or AF_INET6"
    );
    let file = SettingsFile::parse("/etc/t.conf", b"\nTRUNKLINE_DEPTH=many").unwrap();
    assert_eq!(
        nccl(&[]).with_file(file).find(&connections::DEPTH).unwrap_err().to_string(),
        "TRUNKLINE_DEPTH=many: expected a number from 32 to 32768 (/etc/t.conf:2)"
    );
    let long = error(&[("TRUNKLINE_DEPTH", &format!("\u{1b}[31m{}", "9".repeat(4096)))], &connections::DEPTH);
    assert!(long.starts_with("TRUNKLINE_DEPTH=\\u{1b}[31m999") && long.len() < 250, "{long}");
}

#[test]
fn value_that_is_not_utf8_is_an_error_for_each_row() {
    for row in all_rows() {
        for alias in row.names(FrontEndKind::Nvshmem) {
            let values = SettingValues::from_lookup(FrontEndKind::Nvshmem, |name| {
                (name == alias.name).then(|| OsString::from_vec(b"1\xff".to_vec()))
            });
            let text = values.find(row).unwrap_err().to_string();
            assert!(text.starts_with(&format!("{}=", alias.name)), "{text}");
            assert_eq!(text.contains('\u{fffd}'), row.usage != SettingUse::Secret, "{text}");
        }
    }
}

#[test]
fn secret_is_never_shown() {
    let values = nccl(&[("TRUNKLINE_JOB_SECRET", "abc"), ("TRUNKLINE_DEPTH", "64")]);
    let mut reader = values.reader();
    reader.reject(&job::SECRET, "a longer text");
    let error = reader.finish(()).unwrap_err().to_string();
    assert_eq!(error, "TRUNKLINE_JOB_SECRET=(set): expected a longer text");
    let debug = format!("{values:?}");
    assert!(debug.contains("TRUNKLINE_JOB_SECRET") && !debug.contains("abc"), "{debug}");
}

#[test]
fn reader_collects_all_errors_and_continues_with_defaults() {
    let values = nccl(&[("TRUNKLINE_DEPTH", "x"), ("TRUNKLINE_EAGER_MAX", "1T"), ("TRUNKLINE_SPLIT", "no")]);
    let mut reader = values.reader();
    assert_eq!(reader.number(&connections::DEPTH), 512);
    assert_eq!(reader.number(&connections::EAGER_MAX), 4096);
    assert!(reader.choose(&connections::SPLIT, true, &[("on", true), ("off", false)]));
    reader.reject(&network::FABRIC, "a fabric that exists");
    let errors = reader.finish(()).unwrap_err();
    assert_eq!(errors.as_slice().len(), 4);
    assert_eq!(errors.to_string().lines().count(), 4);
    assert!(errors.to_string().contains("TRUNKLINE_FABRIC=auto: expected a fabric that exists"), "{errors}");
}

#[test]
fn reader_keeps_sixteen_errors_and_none_twice() {
    let values = nccl(&[]);
    let mut reader = values.reader();
    for number in 0..40 {
        reader.reject(&network::FABRIC, format!("{}", number / 2));
    }
    assert_eq!(reader.finish(()).unwrap_err().as_slice().len(), 16);
}

#[test]
fn readers_convert_each_type() {
    let values = nccl(&[
        ("TRUNKLINE_EAGER_MAX", "1.5K"),
        ("NCCL_IB_PKEY", "0x7fff"),
        ("NCCL_IB_GID_INDEX", "-1"),
        ("NCCL_IB_SL", "3"),
        ("SHMEM_DEBUG", "yes"),
        ("NVSHMEM_DISABLE_GDRCOPY", "no"),
        ("NCCL_IB_ECE_ENABLE", "0"),
    ]);
    let mut reader = values.reader();
    assert_eq!(reader.number(&connections::EAGER_MAX), 1536);
    assert_eq!(reader.number(&rdma::PKEY), 0x7fff);
    assert_eq!(reader.optional_number(&rdma::GID_INDEX), None);
    assert_eq!(reader.optional_number(&rdma::SERVICE_LEVEL), Some(3));
    assert_eq!(reader.optional_number(&rdma::TIMEOUT), None);
    assert!(reader.switch(&shmem::DEBUG) && !reader.switch(&shmem::INFO));
    assert!(!reader.switch(&nvshmem::DISABLE_GDRCOPY) && !reader.switch(&rdma::ECE_ENABLE));
    assert_eq!(reader.number(&shmem::SYMMETRIC_SIZE), 512 << 20);
    reader.finish(()).unwrap();
}

#[test]
fn ignored_variables_are_described_unless_they_ask_for_the_same() {
    let rows = unused::nccl::ROWS;
    for row in rows {
        let SettingKind::Ignored { same, .. } = row.kind else { panic!("{} has an effect", row.name) };
        let lines = |value: &str| nccl(&[(row.name, value)]).describe_ignored(rows);
        assert!(
            lines("7").len() == 1 && lines("7")[0].starts_with(&format!("{}=7 has no effect: ", row.name))
        );
        for same in same.iter().chain(&["", " "]) {
            assert_eq!(lines(same), [""; 0], "{}={same}", row.name);
        }
    }
    assert_eq!(nccl(&[]).describe_ignored(rows), [""; 0]);
}
