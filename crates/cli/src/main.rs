//! The `trunkline` command. All of it is in the library beside, so that fuzz targets can link its parsers.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    trunkline_cli::run_command()
}
