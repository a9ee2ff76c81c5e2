//! The `trunkline` command. Everything else is in the library, so that fuzz targets can link its parsers.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    trunkline_cli::run_command()
}
