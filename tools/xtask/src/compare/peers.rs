//! The peers' own benchmarks, run as two processes of this host.
//!
//! Only `compare` calls this. A server that is still running is killed when its guard is dropped.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use super::ComparedWire;
use crate::shell::{self, ProgramEnd};

/// How long one client may take.
const LIMIT: Duration = Duration::from_secs(60);

/// How long a server may take to listen.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Half a round trip of `fi_pingpong` over the shm or the net provider, microseconds, mean over the run.
pub(super) fn pingpong_us(wire: ComparedWire, bytes: usize) -> Result<f64> {
    let (provider, iterations) = match wire {
        ComparedWire::Shm if bytes <= 4096 => ("shm", "100000"),
        ComparedWire::Shm => ("shm", "20000"),
        ComparedWire::Tcp | ComparedWire::Ofi => ("net", "20000"),
    };
    let size = bytes.to_string();
    let port = free_port()?.to_string();
    let common = ["-p", provider, "-e", "rdm", "-I", iterations, "-S", &size];
    let mut server = Command::new("fi_pingpong");
    server.args(common).args(["-B", &port]);
    let out = run_against_server(&mut server, || {
        let mut client = Command::new("fi_pingpong");
        client.args(common).args(["-P", &port, "127.0.0.1"]);
        client
    })?;
    read_pingpong(&out).with_context(|| format!("fi_pingpong printed: {out}"))
}

/// The output of the program that uses libfabric for messages only.
pub(super) struct RawFigures {
    /// Median half round trip.
    pub(super) latency_us: f64,
    /// Messages in one direction, in millions per second, 8 in flight.
    pub(super) messages_million: f64,
}

/// Runs that program for one size over the provider for TCP, through the loopback interface; with a connection per
/// direction or one for both.
pub(super) fn measure_raw(program: &Path, bytes: usize, each: bool) -> Result<RawFigures> {
    let out = run_raw(program, bytes, each.then_some("each"))?;
    read_raw(&out).with_context(|| format!("{} printed: {out}", program.display()))
}

/// Measures streams of remote writes and of reads with that program, 1e9 bytes per second.
pub(super) fn raw_streams(program: &Path, bytes: usize) -> Result<[f64; 2]> {
    let out = run_raw(program, bytes, Some("rma"))?;
    read_raw_streams(&out).with_context(|| format!("{} printed: {out}", program.display()))
}

fn run_raw(program: &Path, bytes: usize, word: Option<&str>) -> Result<String> {
    let messages = ((2 << 30) / bytes.max(1)).clamp(30, 20_000).to_string();
    let mut command = Command::new(program);
    command.args(["tcp", "lo", &bytes.to_string(), &messages]).args(word);
    let (ended, out) = shell::run_limited(&mut command, LIMIT)?;
    if ended != ProgramEnd::Passed {
        bail!("{} did not finish its transfers: {out}", program.display());
    }
    Ok(out)
}

fn read_raw_streams(out: &str) -> Option<[f64; 2]> {
    let row: serde_json::Value = out.lines().find_map(|line| serde_json::from_str(line).ok())?;
    Some([row.get("put_gbs")?.as_f64()?, row.get("get_gbs")?.as_f64()?])
}

fn read_raw(out: &str) -> Option<RawFigures> {
    let row: serde_json::Value = out.lines().find_map(|line| serde_json::from_str(line).ok())?;
    let number = |key: &str| row.get(key).and_then(serde_json::Value::as_f64);
    Some(RawFigures { latency_us: number("half_us")?, messages_million: number("rate_mps")? })
}

/// The rate of UCX's tagged stream over posix and cma, or over tcp, GB/s (1e9 bytes).
pub(super) fn tag_bandwidth_gbps(wire: ComparedWire, bytes: usize) -> Result<f64> {
    let out = run_perftest(wire, "tag_bw", bytes)?;
    let messages = read_ucx(&out, "overall_mr").with_context(|| format!("ucx_perftest printed: {out}"))?;
    #[expect(clippy::cast_precision_loss, reason = "message sizes are far below 2^52")]
    Ok(messages * bytes as f64 / 1e9)
}

/// Half a round trip of UCX's tagged messages over posix and cma, us: the median.
pub(super) fn tag_latency_us(bytes: usize) -> Result<f64> {
    let out = run_perftest(ComparedWire::Shm, "tag_lat", bytes)?;
    read_ucx(&out, "50.0_percentile_lat").with_context(|| format!("ucx_perftest printed: {out}"))
}

fn run_perftest(wire: ComparedWire, test: &str, bytes: usize) -> Result<String> {
    let (transports, whole) = match wire {
        ComparedWire::Shm => ("posix,cma,self", 8 << 30),
        ComparedWire::Tcp | ComparedWire::Ofi => ("tcp,self", 2 << 30),
    };
    let iterations = (whole / bytes.max(1)).clamp(30, 100_000).to_string();
    let warm_up = (whole / 16 / bytes.max(1)).clamp(5, 10_000).to_string();
    let size = bytes.to_string();
    let port = free_port()?.to_string();
    let perftest = || {
        let mut command = Command::new("ucx_perftest");
        command.env("UCX_TLS", transports).env("UCX_NET_DEVICES", "all").args(["-p", &port]);
        command
    };
    run_against_server(&mut perftest(), || {
        let mut client = perftest();
        let runs = ["-n", &iterations, "-w", &warm_up, "-f", "-v"];
        client.args(["127.0.0.1", "-t", test, "-s", &size]).args(runs);
        client
    })
}

/// Mean half round trip: the column `usec/xfer` of the last line of figures.
fn read_pingpong(out: &str) -> Option<f64> {
    let mut lines = out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let column = lines.by_ref().find_map(|words| words.iter().position(|w| *w == "usec/xfer"))?;
    lines.filter_map(|words| words.get(column)?.parse().ok()).next_back()
}

/// A column of the CSV output over the whole run.
fn read_ucx(out: &str, name: &str) -> Option<f64> {
    let mut lines = out.lines().filter(|line| line.contains(','));
    let column = lines.by_ref().find_map(|line| line.split(',').position(|column| column == name))?;
    lines.filter_map(|line| line.split(',').nth(column)?.parse().ok()).next_back()
}

/// Kills and reaps the server when dropped.
struct ServerGuard(Child);

impl Drop for ServerGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server, then clients until one connects.
fn run_against_server(server: &mut Command, client: impl Fn() -> Command) -> Result<String> {
    let name = server.get_program().to_string_lossy().into_owned();
    let spawned = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut server = ServerGuard(spawned.with_context(|| format!("starting {name}"))?);
    let begun = Instant::now();
    loop {
        std::thread::sleep(Duration::from_millis(200));
        let (ended, out) = shell::run_limited(&mut client(), LIMIT)?;
        if ended == ProgramEnd::Passed {
            return Ok(out);
        }
        let server_gone = server.0.try_wait().with_context(|| format!("polling {name}"))?.is_some();
        if server_gone || ended == ProgramEnd::TimedOut || begun.elapsed() > START_LIMIT {
            bail!("{name} did not finish its transfers: {out}");
        }
    }
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("finding a free port")?;
    Ok(listener.local_addr().context("finding a free port")?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_fi_pingpong() {
        let out = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
                   8       20k     =20k     312k        0.03s     12.19       0.66       1.52\n";
        assert_eq!(read_pingpong(out), Some(0.66));
        assert_eq!(read_pingpong("cannot connect\n"), None);
    }

    #[test]
    fn reads_the_raw_program() {
        let raw = read_raw("noise\n{\"bytes\":8,\"half_us\":4.1,\"rate_mps\":0.61}\n").unwrap();
        assert_eq!((raw.latency_us, raw.messages_million), (4.1, 0.61));
        assert!(read_raw("refused").is_none());
        let line = "{\"bytes\":8,\"put_us\":9.1,\"get_us\":8.7,\"put_gbs\":0.2,\"get_gbs\":0.1}";
        assert_eq!(read_raw_streams(line), Some([0.2, 0.1]));
        assert!(read_raw(line).is_none() && read_raw_streams("").is_none());
    }

    #[test]
    fn reads_ucx() {
        let out = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n\
                   20000,3.083,3.125,3.125,20000.00,20000.00,320000,310000\n";
        assert_eq!(read_ucx(out, "overall_mr"), Some(310_000.0));
        assert_eq!(read_ucx("[1699] ERROR unreachable\n", "overall_mr"), None);
    }
}
