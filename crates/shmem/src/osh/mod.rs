//! The common part of `oshcc`, `oshcxx` and `oshrun`: it finds the library, its header and the launcher. They are
//! separate programs because builds of OpenSHMEM programs expect these names.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

mod words;

/// The library's names and folders: as installed, and as built by cargo.
const LIBRARIES: [(&str, &str); 2] = [("trunkline-shmem", "../lib"), ("trunkline_shmem", ".")];

/// The paths of an installation.
#[derive(Debug)]
pub(crate) struct InstallPaths {
    /// The folder of the library.
    pub(crate) lib: PathBuf,
    /// The linker's name of the library.
    pub(crate) name: &'static str,
    /// The folder of `shmem.h`.
    pub(crate) include: PathBuf,
}

/// Returns the folder of this program.
fn program_folder() -> PathBuf {
    let own = std::env::current_exe().and_then(|path| path.canonicalize()).unwrap_or_default();
    own.parent().map(Path::to_path_buf).unwrap_or_default()
}

/// Finds the files beside this program. An installation has `../lib` and `../include`; a build folder has both
/// elsewhere.
///
/// # Errors
/// A message that names the missing file.
pub(crate) fn find_installation() -> Result<InstallPaths, String> {
    let here = program_folder();
    let places =
        LIBRARIES.iter().flat_map(|(name, folder)| [(*name, here.join(folder)), (*name, here.join("deps"))]);
    let has = |name: &str, folder: &Path| folder.join(format!("lib{name}.so")).is_file();
    let mut places = places.filter(|(name, folder)| has(name, folder));
    let (name, lib) = places.next().ok_or_else(|| {
        format!(
            "no libtrunkline_shmem.so beside {}; build it with `cargo build -p trunkline-shmem`",
            here.display()
        )
    })?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut includes = [here.join("../include"), source].into_iter();
    let include = includes.find(|folder| folder.join("shmem.h").is_file());
    let include = include.ok_or_else(|| format!("no shmem.h in ../include of {}", here.display()))?;
    let real = |path: PathBuf| path.canonicalize().unwrap_or(path);
    Ok(InstallPaths { lib: real(lib), name, include: real(include) })
}

const HELP: &str = "\
compiles and links OpenSHMEM programs. It runs the compiler with your arguments, and with the options that
find shmem.h and Trunkline's library.

  --showme           print the command instead of running it
  --showme:compile   print the options that are added to compile
  --showme:link      print the options that are added to link
  --help             print this text; --help -v prints the compiler's own

The compiler is that of the environment variable";

/// Runs a compiler with the options for OpenSHMEM.
pub(crate) fn compile(name: &str, variable: &str, default: &str) -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let found = match find_installation() {
        Ok(found) => found,
        Err(missing) => {
            eprintln!("{name}: {missing}");
            return ExitCode::FAILURE;
        }
    };
    if arguments.len() == 1 && arguments[0] == "--help" {
        println!("{name} {HELP} {variable} [default: {default}].");
        return ExitCode::SUCCESS;
    }
    let compiler = std::env::var_os(variable).unwrap_or_else(|| default.into());
    let to_compile = vec![OsString::from(format!("-I{}", found.include.display()))];
    let lib = found.lib.display();
    let to_link =
        [format!("-L{lib}"), format!("-Wl,-rpath,{lib}"), format!("-l{}", found.name)].map(OsString::from);
    let shows = arguments.iter().find_map(|argument| {
        let text = argument.to_str()?;
        let text = text.strip_prefix("--").or_else(|| text.strip_prefix('-'))?;
        matches!(text, "showme" | "show" | "showme:compile" | "showme:link").then(|| text.to_owned())
    });
    let line = |words: &[OsString]| {
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        println!("{}", words.join(" "));
        ExitCode::SUCCESS
    };
    match shows.as_deref() {
        Some("showme:compile") => return line(&to_compile),
        Some("showme:link") => return line(&to_link),
        _ => {}
    }
    arguments.retain(|argument| {
        shows.is_none() || !matches!(argument.to_str(), Some("--showme" | "-showme" | "--show" | "-show"))
    });
    let links = words::links(&arguments);
    let mut all = to_compile;
    all.append(&mut arguments);
    if links {
        all.extend(to_link);
    }
    if shows.is_some() {
        all.insert(0, compiler);
        return line(&all);
    }
    let error = Command::new(&compiler).args(all).exec();
    eprintln!("{name}: cannot run {}: {error}; set {variable} to another compiler", compiler.display());
    ExitCode::FAILURE
}

const RUN_HELP: &str = "\
oshrun starts the PEs of an OpenSHMEM program. It is `trunkline run`, whose --help lists all options.

  oshrun -n 4 ./program            start four PEs on this host; -np is the same
  oshrun --hosts a,b ./program     start one PE on each of two hosts";

/// Replaces this process by the launcher.
pub(crate) fn launch() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if arguments.is_empty() || arguments[0] == "--help" {
        println!("{RUN_HELP}");
        return ExitCode::from(if arguments.is_empty() { 2 } else { 0 });
    }
    let launcher = program_folder().join("trunkline");
    let error = Command::new(&launcher).arg("run").args(words::of_launcher(arguments)).exec();
    eprintln!("oshrun: cannot run {}: {error}", launcher.display());
    ExitCode::FAILURE
}
