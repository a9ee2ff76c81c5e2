//! What the words of a command line mean to a compiler and to the launcher, without calling either. Called by `oshcc`, `oshcxx` and `oshrun`; reads no
//! environment.

use std::ffi::{OsStr, OsString};

/// Options of `trunkline run` that take the next word. A test compares them with its help.
pub(crate) const TAKE_A_VALUE: [&str; 7] =
    ["-n", "--ranks", "--hosts", "--rsh", "--remote-trunkline", "--address", "--env"];

/// The arguments of `oshrun` as `trunkline run` takes them: before the program's name, `-np` is `-n`.
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

/// Options of GCC and Clang that end before anything is linked.
const LINK_NOTHING: [&str; 7] = ["-c", "-S", "-E", "-M", "-MM", "-fsyntax-only", "--version"];

/// Options of theirs that take the next word, which is then no file to compile.
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

/// Whether a compiler that is called so links: it is not told to end before, and there is something to link. `-v` alone prints its version.
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
