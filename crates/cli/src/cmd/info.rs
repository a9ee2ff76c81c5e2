//! `trunkline info`: shows the hardware and the choices: fabrics, NICs, rails, wires, copy methods, settings.
//!
//! Called by `cmd`. It opens the fabric as the plugin would and reads its properties; it connects nothing and loads no
//! plugin.

use std::io::{self, Write};
use std::net::IpAddr;
use std::process::ExitCode;

use clap::{Args, value_parser};
use serde::Serialize;
use thiserror::Error;
use trunkline_engine::{EngineParams, FabricName, SoftCopy};
use trunkline_fabric::{Caps, NicPort};
use trunkline_runtime::{ChooseError, ProcessSettings, VERSION, read_values};
use trunkline_settings::SettingErrors;
use trunkline_settings::rows::command;
use trunkline_topo::{ChoiceError, InterfaceChoice};

use super::fabrics::{FabricError, FabricRow, HostFabrics, requested_fabric};
use super::gpus::GpuMemoryRow;
use super::grants::{self, GrantRow};
use super::settings_view::{SettingFilter, SettingsReport, ShownFrontEnd, describe_missing_term};
use super::unused::UnusedRow;
use crate::locate;
use crate::own_settings::read_setting;
use crate::top;
use crate::top::find::PageFindError;
use crate::top::sample::StatusSample;

const EXAMPLES: &str = "\
Examples:
  trunkline info             fabrics, NICs, how the software NIC copies data, the plugin that bench would load
  trunkline info --params    every setting by group: its value, where that comes from, what it does
  trunkline info --params qp the settings whose name, alias, group or text contains \"qp\"
  trunkline info --json      the output of the first example as one JSON object
  trunkline info --pid 4711  a running process: its connections, queue pairs that they share, shared memory

The output describes a program that is started in this environment: TRUNKLINE_FABRIC and all other settings
have effect. An unknown TRUNKLINE_ variable causes a warning, an invalid value an error. A front end is the
interface that a program uses: NCCL (or RCCL), OpenSHMEM, NVSHMEM, or the Rust API. Without --params, the
output is that of NCCL.

A link is a reliable connection from a rail (a NIC port that a connection uses) to one rail of a peer. With
RDMA and with software NICs it is a pair of connected queue pairs, with libfabric a peer of an endpoint. A
comm (an NCCL connection) has up to four links in all.

Columns of NICs:
  name, port    the NIC by its name in the system or in libfabric, and its port
  address       IP address by which other hosts reach a software NIC; none for other NICs
  speed         speed of the port; for a software NIC, its share of the network interface
  guid          identifier of the NIC
  links         most links that the NIC can have
  pipelines     parts of the NIC that work in parallel, as some NICs of AMD have; each serves an equal share
                of the links; most NICs have 1
  regions       most registered memory regions
  depth         most outstanding operations per link
  inline        most bytes that an operation copies when it is posted, so that they need not be registered
  flush         yes: received data may stay invisible to the CPU until Trunkline flushes it by a read
  matched       yes: the NIC itself matches sends with receives (tag matching)

Rails are the NIC ports that connections use. Wires are the ways by which a software NIC reaches a peer: mem
inside a process, shm (shared memory) between processes of this host, tcp between hosts.

--json adds properties of each NIC on which the protocol depends; these are true or false except match_bits:
  link_order               operations of a link arrive in the order in which they were posted
  remote_len               the target's completion of a write with immediate has the length of the write
  match_order, match_bits  matched operations are paired in order; number of bits of a key that are compared
  atomics                  the NIC executes remote atomics
  wait                     an operation can block its link until a completion queue has a given completion
  retires                  a peer's write to withdrawn memory is dropped; else it fails the link
  ends_are_told            a link that is closed delivers its operations first, and then fails the peer's end
  refusals_are_told        an operation that the target refuses fails; else it may seem to succeed
  errors_reach_peers       an error of one end of a link also fails the other end
  sends_wait               a send without a receive waits at its sender; else the target buffers it
  arrives                  a completed operation has arrived; else only its source may be reused
  immediate_takes_receive  a write with immediate consumes a receive
  write_data               a write may carry an immediate

--pid prints the lines of `trunkline top --once --comms` for that process (see `trunkline top --help`), and
each buffer that the process shares with others of this host, with the ranks that have not released it.";

/// Arguments of `info`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InfoArgs {
    /// Show the settings instead, with their values and sources; with TERM those that contain it.
    #[arg(long, value_name = "TERM", num_args = 0..=1, default_missing_value = "")]
    params: Option<String>,
    /// With --params: also show variables of launchers and of tests, and variables of other libraries that have no
    /// effect here.
    #[arg(long, requires = "params")]
    all: bool,
    /// With --params: the front end whose names and defaults are shown.
    #[arg(long = "for", value_name = "FRONT_END", requires = "params", default_value = "nccl")]
    front_end: ShownFrontEnd,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
    /// Show the activity of this running process instead.
    #[arg(long, value_name = "PID", conflicts_with = "params", value_parser = value_parser!(u32).range(1..))]
    pid: Option<u32>,
}

/// The columns of a NIC.
const NIC_COLUMNS: [&str; 12] = [
    "name",
    "port",
    "address",
    "speed",
    "guid",
    "links",
    "pipelines",
    "regions",
    "depth",
    "inline",
    "flush",
    "matched",
];

/// Why nothing can be shown.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum InfoError {
    /// Settings have invalid values, or the configuration file cannot be used.
    #[error(transparent)]
    Settings(#[from] ChooseError),
    /// The choice of network interfaces has an invalid value.
    #[error(transparent)]
    Values(#[from] SettingErrors),
    /// No setting contains the term.
    #[error("{0}")]
    Term(String),
    /// No network interface matches the settings.
    #[error(transparent)]
    Choice(#[from] ChoiceError),
    /// The network interfaces cannot be listed.
    #[error("cannot list the network interfaces: {0}")]
    Interfaces(#[source] io::Error),
    /// The requested fabric cannot be used.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The process does not exist, or its page cannot be read.
    #[error(transparent)]
    Process(#[from] PageFindError),
    /// Standard output cannot be written.
    #[error("cannot write: {0}")]
    Print(#[from] io::Error),
    /// The JSON cannot be serialised.
    #[error("cannot write JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Runs the subcommand.
pub(crate) fn run_info(args: &InfoArgs) -> Result<ExitCode, InfoError> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    if let Some(pid) = args.pid {
        show_process(&mut out, pid, args.json)?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(term) = &args.params {
        return show_settings(&mut out, args, term);
    }
    let settings = ProcessSettings::from_process(ShownFrontEnd::Nccl.front_end_kind())?;
    print_warnings(settings.warning_lines());
    let report = HostReport::collect(&settings)?;
    print_warnings(&report.warnings[settings.warning_lines().len()..]);
    if args.json {
        write_json(&mut out, &report)?
    } else {
        report.print_report(&mut out)?
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Shows the settings that contain a term. Invalid values are shown as such; the exit status is then 2.
fn show_settings(out: &mut impl Write, args: &InfoArgs, term: &str) -> Result<ExitCode, InfoError> {
    let (values, warnings) = read_values(args.front_end.front_end_kind())?;
    print_warnings(&warnings);
    let report = SettingsReport::new(&values, warnings, SettingFilter { term, all: args.all });
    if report.is_empty() {
        return Err(InfoError::Term(describe_missing_term(term)));
    }
    if args.json {
        write_json(out, &report)?
    } else {
        report.print_report(out)?
    }
    out.flush()?;
    match report.invalid_values() {
        [] => Ok(ExitCode::SUCCESS),
        errors => {
            errors.iter().for_each(|error| eprintln!("trunkline: {error}"));
            Ok(ExitCode::from(2))
        }
    }
}

/// Prints warnings.
fn print_warnings(warnings: &[String]) {
    for warning in warnings {
        eprintln!("trunkline: warning: {warning}");
    }
}

fn show_process(out: &mut impl Write, pid: u32, as_json: bool) -> Result<(), InfoError> {
    let sample = StatusSample::take_once(Some(pid), true)?;
    if as_json {
        return write_json(out, &top::report::TopReport::new(&sample, true));
    }
    let lines = top::table::sample_lines(&sample, true).into_iter().chain(top::node::buffer_lines(&sample));
    for line in lines {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn write_json(out: &mut impl Write, report: &impl Serialize) -> Result<(), InfoError> {
    serde_json::to_writer_pretty(&mut *out, report)?;
    Ok(writeln!(out)?)
}

/// A NIC port. The fields from `links_max` on are those of the same names in [`Caps`].
#[derive(Debug, Serialize)]
struct NicPortRow {
    fabric: &'static str,
    name: String,
    guid: String,
    port: u32,
    /// The network interface by which other hosts reach it.
    interface: Option<String>,
    address: Option<String>,
    pci_path: Option<String>,
    speed_mbps: u32,
    links_max: u32,
    pipelines: u32,
    regions_max: u32,
    depth_max: u32,
    completions_max: u32,
    message_max: u64,
    inline_max: u32,
    link_order: bool,
    remote_len: bool,
    needs_flush: bool,
    matched: bool,
    match_order: bool,
    match_bits: u32,
    atomics: bool,
    wait: bool,
    retires: bool,
    ends_are_told: bool,
    refusals_are_told: bool,
    errors_reach_peers: bool,
    sends_wait: bool,
    arrives: bool,
    immediate_takes_receive: bool,
    write_data: bool,
}

/// A rail: a NIC port that connections can use. A connection uses one, unless NICs are fused into one device.
#[derive(Debug, Serialize)]
struct RailRow {
    nic: String,
    port: u32,
    per_connection: u32,
}

/// A wire: a way by which the software NIC reaches a peer.
#[derive(Debug, Serialize)]
struct WireRow {
    name: &'static str,
    present: bool,
    in_use: bool,
    note: &'static str,
}

/// The copy method of a wire for a range of message sizes.
#[derive(Debug, Serialize)]
struct CopyRow {
    wire: &'static str,
    from_bytes: u64,
    /// Largest size; `None`: no limit.
    to_bytes: Option<u64>,
    method: &'static str,
    copies: u32,
    note: &'static str,
}

/// The plugin that `bench` would load, or the reason why there is none.
#[derive(Debug, Serialize)]
struct PluginRow {
    path: Option<String>,
    from: &'static str,
    error: Option<String>,
}

/// The whole output without `--params`.
#[derive(Debug, Serialize)]
struct HostReport {
    version: &'static str,
    /// Version and commit.
    build: &'static str,
    asked: String,
    fabrics: Vec<FabricRow>,
    nics: Vec<NicPortRow>,
    unused: Vec<UnusedRow>,
    /// Only for NICs of libfabric.
    grants: Vec<GrantRow>,
    gpus: Vec<GpuMemoryRow>,
    rails: Vec<RailRow>,
    wires: Vec<WireRow>,
    copy_methods: Vec<CopyRow>,
    copy_origin: &'static str,
    plugin: PluginRow,
    warnings: Vec<String>,
}

impl HostReport {
    /// Whether all NICs with that name have a place in the PCI tree.
    fn is_placed(&self, nic: &str) -> bool {
        self.nics.iter().filter(|row| row.name == nic).all(|row| row.pci_path.is_some())
    }

    fn collect(settings: &ProcessSettings) -> Result<Self, InfoError> {
        let params = &settings.params;
        let mut warnings = settings.warning_lines().to_vec();
        let interfaces = host_interfaces(settings)?;
        let addresses = interfaces.iter().map(|(_, address)| *address).collect();
        let mut found = HostFabrics::new(settings, addresses)?;
        let gpus = found.take_gpu_rows();
        warnings.extend(found.requirement_warning(params));
        let (name, all) = found.chosen_fabric();
        // Only software NICs use addresses of the host's interfaces.
        let is_soft = found.is_soft();
        let interface =
            |at: usize| at.checked_rem(interfaces.len()).filter(|_| is_soft).map(|at| &interfaces[at]);
        let numbered = all.iter().enumerate();
        let nics: Vec<NicPortRow> = numbered.map(|(at, nic)| nic_row(name, nic, interface(at))).collect();
        let rail = |nic: &NicPortRow| RailRow { nic: nic.name.clone(), port: nic.port, per_connection: 1 };
        let used = UsedWires::new(params.fabric, is_soft, !interfaces.is_empty());
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            build: VERSION,
            asked: requested_fabric(params),
            rails: nics.iter().map(rail).collect(),
            wires: wire_rows(used),
            copy_methods: copy_methods(params, found.soft_inline(), used),
            copy_origin: copy_origin(params),
            fabrics: found.fabric_rows(),
            grants: found.grant_rows(),
            unused: found.unused_devices().iter().map(UnusedRow::from).collect(),
            nics,
            gpus,
            plugin: plugin_row(),
            warnings,
        })
    }

    fn print_report(&self, out: &mut impl Write) -> io::Result<()> {
        let Self { build, asked, copy_origin, .. } = self;
        writeln!(out, "Trunkline {build}")?;
        let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        write_section(
            out,
            &format!("Fabrics (TRUNKLINE_FABRIC is {asked})"),
            self.fabrics.iter().map(|f| [f.name.to_owned(), f.state_word().to_owned(), f.note.clone()]),
        )?;
        let nics = self.nics.iter().map(|n| {
            [
                n.name.clone(),
                n.port.to_string(),
                n.address.clone().unwrap_or_else(|| "none".to_owned()),
                crate::topo::format_speed(Some(n.speed_mbps)),
                n.guid.clone(),
                n.links_max.to_string(),
                n.pipelines.to_string(),
                n.regions_max.to_string(),
                n.depth_max.to_string(),
                format!("{} B", n.inline_max),
                yes(n.needs_flush),
                yes(n.matched),
            ]
        });
        write_section(out, "NICs", std::iter::once(NIC_COLUMNS.map(str::to_owned)).chain(nics))?;
        if !self.unused.is_empty() {
            let rows = self.unused.iter().map(UnusedRow::row_cells);
            write_section(
                out,
                "Devices that are not used",
                std::iter::once(UnusedRow::column_titles()).chain(rows),
            )?;
        }
        if !self.grants.is_empty() {
            let grants = self.grants.iter().map(GrantRow::row_cells);
            write_section(
                out,
                "Modes and limits of the libfabric provider",
                std::iter::once(grants::column_titles()).chain(grants),
            )?;
        }
        write_section(out, "Memory of GPUs", self.gpus.iter().map(GpuMemoryRow::row_cells))?;
        write_section(
            out,
            "Rails",
            self.rails.iter().map(|r| {
                [format!("{}:{}", r.nic, r.port), fusion_note(self.rails.len(), self.is_placed(&r.nic))]
            }),
        )?;
        write_section(
            out,
            "Wires of the software NIC",
            self.wires.iter().map(|w| {
                let state = match (w.in_use, w.present) {
                    (true, _) => "in use",
                    (false, true) => "off",
                    (false, false) => "missing",
                };
                [w.name.to_owned(), state.to_owned(), w.note.to_owned()]
            }),
        )?;
        write_section(
            out,
            &format!("Copy methods of the software NIC, by size ({copy_origin})"),
            self.copy_methods.iter().map(|c| {
                [
                    c.wire.to_owned(),
                    format_range(c.from_bytes, c.to_bytes),
                    c.method.to_owned(),
                    c.note.to_owned(),
                ]
            }),
        )?;
        let PluginRow { path, from, error } = &self.plugin;
        let text = path.as_ref().or(error.as_ref()).map_or("", String::as_str);
        write_section(out, "Plugin that bench loads", [[text.to_owned(), format!("from {from}")]].into_iter())
    }
}

fn nic_row(fabric: &'static str, nic: &NicPort, interface: Option<&(String, IpAddr)>) -> NicPortRow {
    let caps: &Caps = &nic.caps;
    NicPortRow {
        fabric,
        name: nic.name.clone(),
        guid: format!("{:016x}", nic.guid),
        port: nic.port,
        interface: interface.map(|(name, _)| name.clone()),
        address: interface.map(|(_, address)| address.to_string()),
        pci_path: nic.pci_path.clone(),
        speed_mbps: nic.speed_mbps,
        links_max: caps.links_max,
        pipelines: caps.pipelines,
        regions_max: caps.regions_max,
        depth_max: caps.depth_max,
        completions_max: caps.completions_max,
        message_max: caps.message_max,
        inline_max: caps.inline_max,
        link_order: caps.link_order,
        remote_len: caps.remote_len,
        needs_flush: caps.needs_flush,
        matched: caps.matched,
        match_order: caps.match_order,
        match_bits: caps.match_bits,
        atomics: caps.atomics,
        wait: caps.wait,
        retires: caps.retires,
        ends_are_told: caps.ends_are_told,
        refusals_are_told: caps.refusals_are_told,
        errors_reach_peers: caps.errors_reach_peers,
        sends_wait: caps.sends_wait,
        arrives: caps.arrives,
        immediate_takes_receive: caps.immediate_takes_receive,
        write_data: caps.write_data,
    }
}

/// Describes whether a rail can be fused with others, and by what. NCCL fuses only devices with a place in the PCI
/// tree.
fn fusion_note(rails: usize, is_placed: bool) -> String {
    let by = if is_placed { "NCCL or bench --merge" } else { "bench --merge" };
    match rails {
        0 | 1 => "alone".to_owned(),
        _ => format!("alone, or fused with up to {} others by {by}", (rails - 1).min(3)),
    }
}

/// The wires that links may use.
#[derive(Clone, Copy)]
struct UsedWires {
    mem: bool,
    shm: bool,
    tcp: bool,
}

impl UsedWires {
    fn new(fabric: FabricName, is_soft: bool, network: bool) -> Self {
        match fabric {
            _ if !is_soft => Self { mem: false, shm: false, tcp: false },
            FabricName::Auto | FabricName::Soft => Self { mem: true, shm: true, tcp: network },
            FabricName::Verbs | FabricName::Ofi => Self { mem: false, shm: false, tcp: false },
            FabricName::SoftShm => Self { mem: false, shm: true, tcp: false },
            FabricName::SoftTcp => Self { mem: false, shm: false, tcp: true },
        }
    }
}

fn wire_rows(used: UsedWires) -> Vec<WireRow> {
    let row = |name, in_use, note| WireRow { name, present: true, in_use, note };
    let not = |in_use, note, why| if in_use { note } else { why };
    let asked = "the selected fabric does not use it";
    // Why tcp is not in use, if it is not.
    let reached = not(used.shm, "no network interface is up", asked);
    let reached = if used.mem { reached } else { asked };
    vec![
        row("mem", used.mem, not(used.mem, "inside one process", asked)),
        row("shm", used.shm, not(used.shm, "between processes of this host", asked)),
        row("tcp", used.tcp, not(used.tcp, "between hosts", reached)),
    ]
}

/// The setting or rule that selects between staged, pulled and shared.
fn copy_origin(params: &EngineParams) -> &'static str {
    match params.soft.copy {
        _ if params.soft.delayed => "TRUNKLINE_SOFT_DELAYED allows only staging",
        SoftCopy::Auto => "each connection learns which is the fastest",
        SoftCopy::Staging | SoftCopy::Pull | SoftCopy::Share => "TRUNKLINE_SOFT_COPY selects it",
    }
}

/// The possible copy methods, by size.
fn copy_methods(params: &EngineParams, inline: u64, used: UsedWires) -> Vec<CopyRow> {
    let row = |wire, from, to, method, copies, note| CopyRow {
        wire,
        from_bytes: from,
        to_bytes: to,
        method,
        copies,
        note,
    };
    let small = "inside the work request";
    let mut rows = Vec::new();
    if used.tcp {
        rows.push(row(
            "tcp",
            0,
            Some(4096),
            "buffered",
            2,
            "in one buffer with the frame header; copies by the kernel are not counted",
        ));
        rows.push(row("tcp", 4097, None, "straight", 0, "the kernel copies from and to registered memory"));
    }
    if used.mem {
        rows.push(row("mem", 0, Some(inline), "inline", 2, small));
        rows.push(row("mem", inline + 1, None, "direct", 1, "the receiver copies from the sender's buffer"));
    }
    if !used.shm {
        return rows;
    }
    rows.push(row("shm", 0, Some(inline), "inline", 2, small));
    let direct = if params.soft.delayed { SoftCopy::Staging } else { params.soft.copy };
    let staged = (inline + 1, "staged", 2, "sender and receiver copy through a shared ring at the same time");
    let pulled = (8 << 10, "pulled", 1, "the receiver reads the sender's memory");
    let shared = (64 << 10, "shared", 1, "the receiver reads one part, the sender writes the other");
    let methods = match direct {
        SoftCopy::Auto => vec![staged, pulled, shared],
        SoftCopy::Staging => vec![staged],
        SoftCopy::Pull => vec![staged, pulled],
        SoftCopy::Share => vec![staged, pulled, shared],
    };
    for (at, &(from, method, copies, note)) in methods.iter().enumerate() {
        // A requested method is used from its least size on. If connections learn the method, all methods remain
        // possible at every size.
        let next = methods.get(at + 1).filter(|_| direct != SoftCopy::Auto);
        rows.push(row("shm", from, next.map(|(from, ..)| from - 1), method, copies, note));
    }
    rows
}

fn plugin_row() -> PluginRow {
    let named = read_setting(&command::PLUGIN).is_ok_and(|path| path.is_some());
    let from = if named { locate::VARIABLE } else { "the program's directory" };
    match locate::find_plugin(None) {
        Ok(path) => PluginRow { path: Some(path.display().to_string()), from, error: None },
        Err(error) => PluginRow { path: None, from, error: Some(error.to_string()) },
    }
}

/// The network interfaces by which the plugin would reach other hosts.
fn host_interfaces(settings: &ProcessSettings) -> Result<Vec<(String, IpAddr)>, InfoError> {
    if settings.params.fabric == FabricName::SoftShm {
        return Ok(Vec::new());
    }
    let choice = InterfaceChoice::from_settings(settings.setting_values())?;
    let all = trunkline_topo::list_interfaces().map_err(InfoError::Interfaces)?;
    Ok(choice
        .select_interfaces(&all)?
        .into_iter()
        .map(|(one, address)| (one.name.clone(), address))
        .collect())
}

/// A title, and lines in columns below it.
fn write_section<const N: usize>(
    out: &mut impl Write,
    title: &str,
    rows: impl Iterator<Item = [String; N]>,
) -> io::Result<()> {
    writeln!(out, "\n{title}")?;
    align_columns(&rows.collect::<Vec<_>>()).iter().try_for_each(|line| writeln!(out, "  {line}"))
}

/// Lines whose columns begin below each other.
fn align_columns<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let widths: [usize; N] =
        std::array::from_fn(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0));
    let line = |row: &[String; N]| {
        let cells: Vec<String> = row.iter().zip(widths).map(|(cell, w)| format!("{cell:<w$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Formats a range of sizes for readers.
fn format_range(from: u64, to: Option<u64>) -> String {
    match to {
        // "< 1 MiB" is easier to read than 1048575.
        Some(to) if (to + 1).is_multiple_of(1 << 10) => {
            format!("{} to < {}", format_size(from), format_size(to + 1))
        }
        Some(to) => format!("{} to {}", format_size(from), format_size(to)),
        None => format!("{} and more", format_size(from)),
    }
}

fn format_size(bytes: u64) -> String {
    match bytes {
        _ if bytes > 0 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes > 0 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::format_range;

    #[test]
    fn sizes_are_short() {
        assert_eq!(format_range(0, Some(96)), "0 B to 96 B");
        assert_eq!(format_range(97, Some(65535)), "97 B to < 64 KiB");
        assert_eq!(format_range(65536, None), "64 KiB and more");
        assert_eq!(format_range(1 << 20, None), "1 MiB and more");
    }
}
