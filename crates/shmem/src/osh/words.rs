//! The command line of the compilers and of the launcher. Called by `oshcc`, `oshcxx` and `oshrun`; reads no
//! environment, and runs no program.

use std::ffi::{OsStr, OsString};

/// Options of `trunkline run` that take a value. A test compares them with its help.
pub(crate) const TAKE_A_VALUE: [&str; 7] =
    ["-n", "--ranks", "--hosts", "--rsh", "--remote-trunkline", "--address", "--env"];

/// Translates the arguments of `oshrun` to those of `trunkline run`: before the program's name, `-np` is `-n`.
pub(crate) fn of_launcher(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut options = true;
    let mut is_value = false;
    let translated = |argument: OsString| {
        if !options || std::mem::take(&mut is_value) {
            return argument;
        }
        let argument = if argument == "-np" { "-n".into() } else { argument };
        is_value = argument.to_str().is_some_and(|word| TAKE_A_VALUE.contains(&word));
        options = has_prefix(&argument, "-") && argument != "--";
        argument
    };
    arguments.into_iter().map(translated).collect()
}

/// Options of GCC and Clang that stop before linking.
const LINK_NOTHING: [&str; 7] = ["-c", "-S", "-E", "-M", "-MM", "-fsyntax-only", "--version"];

/// Options of GCC and Clang that take a value, which is no input file.
const OF_COMPILERS: [&str; 23] = [
    "-o",
    "-x",
    "-I",
    "-L",
    "-D",
    "-U",
    "-T",
    "-u",
    "-z",
    "-e",
    "-A",
    "-MF",
    "-MT",
    "-MQ",
    "-include",
    "-imacros",
    "-isystem",
    "-iquote",
    "-idirafter",
    "-Xpreprocessor",
    "-Xassembler",
    "-Xlinker",
    "--param",
];

/// Returns whether a compiler with these arguments links: no option stops it before, and it has an input. `-v` alone
/// prints its version.
pub(crate) fn links(arguments: &[OsString]) -> bool {
    let mut is_value = false;
    let mut is_input = |argument: &OsString| {
        if std::mem::take(&mut is_value) {
            return false;
        }
        is_value = argument.to_str().is_some_and(|word| OF_COMPILERS.contains(&word));
        !has_prefix(argument, "-") || argument == "-" || has_prefix(argument, "-l")
    };
    arguments.iter().any(&mut is_input)
        && !arguments
            .iter()
            .any(|argument| argument.to_str().is_some_and(|word| LINK_NOTHING.contains(&word)))
}

fn has_prefix(argument: &OsStr, with: &str) -> bool {
    argument.as_encoded_bytes().starts_with(with.as_bytes())
}
