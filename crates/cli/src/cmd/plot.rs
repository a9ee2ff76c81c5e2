//! `trunkline plot`: draws saved results as a picture.
//!
//! Called by `cmd`. `bench::plot` draws; this module loads no plugin and runs no benchmark.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::bench::plot::{self, PlotError, PlotRun};

const EXAMPLES: &str = "\
Examples:
  trunkline bench all_reduce --json > ours.json
  trunkline bench all_reduce --json --plugin ./libnccl-net-other.so > other.json
  trunkline plot all_reduce.svg ours.json other.json          two curves, named ours and other
  trunkline plot p2p.svg \"shared memory\"=shm.json tcp.json  a name for the legend
  trunkline bench p2p --json | trunkline plot p2p.svg -       from standard input

The picture has two panels, side by side. The x axis of both is the message size, and all axes are
logarithmic. The left panel shows the bandwidth in GB/s: bus bandwidth of collectives, one-way bandwidth of
p2p. The right panel shows the time; for p2p it is half the median round trip. The title contains the
settings that all runs share, and the legend those that differ. A file may contain several runs, one after
another. In a browser, point at a marker to see its figures.

To draw a run directly, without a file of results, use `trunkline bench --plot FILE.svg`.";

/// Arguments of `plot`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PlotArgs {
    /// Write the picture to this file (.svg), which is replaced.
    #[arg(value_name = "FILE.svg", value_parser = picture_path)]
    picture: PathBuf,
    /// Read results of `trunkline bench --json` from this file, or from standard input (-); NAME=FILE sets the name in
    /// the legend [default: the file's name].
    #[arg(value_name = "[NAME=]RUN.json", required = true)]
    runs: Vec<String>,
    /// Draw the in-place rows of collectives instead of the out-of-place rows.
    #[arg(long)]
    in_place: bool,
}

/// Parses the path of a picture. Only `.svg` is accepted, so that a mistyped argument does not overwrite results.
pub(crate) fn picture_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension.eq_ignore_ascii_case("svg") => Ok(path),
        _ => Err("the picture is an SVG file; end its name in .svg".to_owned()),
    }
}

/// Draws the picture.
pub(crate) fn run_plot(args: &PlotArgs) -> Result<ExitCode, PlotError> {
    let mut runs: Vec<PlotRun> = Vec::new();
    for text in &args.runs {
        let (name, path) = name_and_path(text);
        runs.extend(plot::read_runs(path, &name, args.in_place)?);
    }
    plot::draw_runs(&args.picture, &runs)?;
    Ok(ExitCode::SUCCESS)
}

/// Splits `NAME=PATH`. Without a name, or if the whole argument is the path of an existing file, the name is that of
/// the file.
fn name_and_path(text: &str) -> (String, &str) {
    if text == "-" {
        return ("standard input".to_owned(), text);
    }
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !Path::new(text).exists() => (name.to_owned(), path),
        _ => {
            let stem = Path::new(text).file_stem().unwrap_or_default();
            (stem.to_string_lossy().into_owned(), text)
        }
    }
}
