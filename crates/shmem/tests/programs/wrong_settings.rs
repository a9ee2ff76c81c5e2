//! Wrong settings of a job: each is printed once, by PE 0, whichever PEs have it.

use super::*;

const SHARED_8: Way = (SHARED.0, 8);

/// Runs a job in which some PEs have more variables. Returns the standard error of each PE, and whether all ended well, and not all with
/// status 1.
fn errors_of(variables: &[(&str, &str)], has: impl Fn(usize) -> bool) -> (Vec<String>, bool) {
    errors_with_heap(variables, has, |_| "8M")
}

fn errors_with_heap(
    variables: &[(&str, &str)],
    has: impl Fn(usize) -> bool,
    heap: impl Fn(usize) -> &'static str,
) -> (Vec<String>, bool) {
    let program = Program::new("setup.c", &[]);
    let command = |pe: usize| {
        let mut command = Command::new(program.path());
        if has(pe) {
            command.envs(variables.iter().copied());
        }
        command
    };
    let outputs: Vec<Output> =
        end_all(program.start_by(SHARED_8, &[], heap, command)).into_iter().map(Option::unwrap).collect();
    let codes: Vec<_> = outputs.iter().map(|output| output.status.code()).collect();
    let errors = outputs.iter().map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).collect();
    assert!(codes == [Some(0); 8] || codes == [Some(1); 8], "{codes:?}: {errors:?}");
    (errors, codes[0] == Some(0))
}

/// Asserts that no PE starts, and that these lines are all that is printed, by PE 0.
fn prints_once(variables: &[(&str, &str)], has: impl Fn(usize) -> bool, lines: &[&str]) {
    let (errors, is_started) = errors_of(variables, has);
    let expected: String = lines.iter().map(|line| format!("trunkline: {line}\n")).collect();
    assert_eq!(errors[0], expected);
    assert!(!is_started && errors[1..].iter().all(String::is_empty), "{errors:?}");
}

const EXPECTED: &str = "TRUNKLINE_DEPTH=x: expected a number from 32 to 32768";

#[test]
fn wrong_value_of_one_pe_is_printed_once() {
    prints_once(&[("TRUNKLINE_DEPTH", "x")], |pe| pe == 3, &[&format!("rank 3: {EXPECTED}")]);
}

#[test]
fn wrong_value_of_all_pes_is_printed_once() {
    prints_once(&[("TRUNKLINE_DEPTH", "x")], |_| true, &[&format!("all 8 ranks: {EXPECTED}")]);
}

#[test]
fn several_wrong_values_are_lines_of_pe_zero() {
    let line = "NCCL_SOCKET_FAMILY=x: expected AF_INET or AF_INET6";
    prints_once(&[("NCCL_SOCKET_FAMILY", "x")], |pe| pe > 5, &[&format!("ranks 6-7: {line}")]);
    let many = [("TRUNKLINE_DEPTH", "x"), ("TRUNKLINE_HEAP_BYTES", "y")];
    let (errors, is_started) = errors_of(&many, |pe| pe == 7);
    assert!(!is_started && errors[0].lines().count() == 2, "{errors:?}");
    assert!(errors[0].lines().all(|line| line.starts_with("trunkline: rank 7: TRUNKLINE_")), "{errors:?}");
}

#[test]
fn own_setting_of_openshmem_is_printed_once() {
    let (errors, is_started) = errors_with_heap(&[], |_| false, |pe| if pe % 2 == 1 { "many" } else { "8M" });
    assert!(!is_started && errors[1..].iter().all(String::is_empty), "{errors:?}");
    assert!(errors[0].starts_with("trunkline: ranks 1, 3, 5, 7: SHMEM_SYMMETRIC_SIZE=many: "), "{errors:?}");
    assert_eq!(errors[0].lines().count(), 1);
}

#[test]
fn missing_file_of_one_pe_is_printed_once() {
    let file = "/nonexistent/trunkline.conf";
    let line = format!(
        "rank 2: cannot read the configuration file {file}: No such file or directory (os error 2); correct TRUNKLINE_CONF, or set it \
         to none"
    );
    prints_once(&[("TRUNKLINE_CONF", file)], |pe| pe == 2, &[&line]);
}

#[test]
fn warnings_are_printed_once_and_pes_start() {
    let line = "is not a setting; did you mean TRUNKLINE_DEPTH?";
    for (all, ranks) in [(true, "all 8 ranks"), (false, "rank 5")] {
        let (errors, is_started) = errors_of(&[("TRUNKLINE_DEPHT", "64")], |pe| all || pe == 5);
        assert!(is_started && errors[1..].iter().all(String::is_empty), "{errors:?}");
        assert_eq!(errors[0], format!("trunkline: {ranks}: TRUNKLINE_DEPHT {line}\n"));
    }
}
