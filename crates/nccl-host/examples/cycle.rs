//! The program whose instructions `cargo xtask budget` counts: messages between two communicators of one process and
//! one thread, through the plugin's C table. Two runs of different lengths differ by the messages alone.
//!
//! `cycle PLUGIN eager|direct|grouped BYTES MESSAGES`: with `eager` the send is posted first, with `direct` the receive.
//! With `grouped` a receive of eight buffers is posted first, then a send for each; together they count as one message.
//!
//! `TRUNKLINE_PLANT=work|syscall` adds work or a system call to each message, which the budgets must detect.
//! `TRUNKLINE_PLANT=reader` starts a process that reads this one's status page during the whole run: `cycle read PID`.

use std::error::Error;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use trunkline_nccl_host::{
    HostBuffer, MemoryKind, NetMr, NetPlugin, NetRecvPart, PluginContext, RecvComm, SendComm,
};

/// Messages before the counted ones, which allocate memory and learn copy methods, the same in every run.
const WARMUP: usize = 300;
const TAG: i32 = 7;
/// Buffers of a grouped receive.
const GROUP: usize = 8;
/// Instructions, roughly, of the planted work.
const WORK: u32 = 2000;

/// Work added to each message, so that the budgets must fail.
#[derive(Clone, Copy, PartialEq)]
enum Plant {
    Nothing,
    Work,
    Syscall,
}

struct Ends {
    send: SendComm,
    recv: RecvComm,
    from: HostBuffer,
    into: HostBuffer,
    from_mr: NetMr,
    into_mr: NetMr,
    bytes: usize,
    /// Buffers of a receive.
    parts: usize,
    plant: Plant,
}

impl Ends {
    fn connect(
        net: &std::sync::Arc<PluginContext>,
        bytes: usize,
        parts: usize,
        plant: Plant,
    ) -> Result<Self, Box<dyn Error>> {
        let (listener, mut handle) = net.listen(0)?;
        let (mut send, mut recv) = (None, None);
        while send.is_none() || recv.is_none() {
            if send.is_none() {
                send = net.connect(0, &mut handle)?;
            }
            if recv.is_none() {
                recv = listener.accept()?;
            }
        }
        let (Some(send), Some(recv)) = (send, recv) else { return Err("not connected".into()) };
        let all = bytes * parts;
        let from = HostBuffer::new(MemoryKind::Private, all)?;
        let into = HostBuffer::new(MemoryKind::Private, all)?;
        // SAFETY: the buffer outlives the communicators, and no message is in flight.
        unsafe { from.slice_mut(0, all) }.fill(0x5a);
        // SAFETY: the buffer is unmapped only after the communicators are closed.
        let from_mr = unsafe { send.reg_mr(from.as_ptr(), all) }?;
        // SAFETY: as above.
        let into_mr = unsafe { recv.reg_mr(into.as_ptr(), all) }?;
        Ok(Self { send, recv, from, into, from_mr, into_mr, bytes, parts, plant })
    }

    /// One receive of several buffers and a send for each.
    fn grouped(&self) -> Result<(), Box<dyn Error>> {
        let place = |base: *mut u8, at: usize| base.wrapping_add(at * self.bytes);
        let part = |at: usize| NetRecvPart {
            data: place(self.into.as_ptr(), at),
            bytes: self.bytes,
            tag: TAG + at as i32,
            mr: self.into_mr,
        };
        let parts: [NetRecvPart; GROUP] = std::array::from_fn(part);
        let mut receiving = None;
        while receiving.is_none() {
            // SAFETY: registered, and no other message uses the memory.
            receiving = unsafe { self.recv.irecv(&parts, false) }?;
        }
        let mut sending = [None; GROUP];
        for (at, sending) in sending.iter_mut().enumerate() {
            let from = place(self.from.as_ptr(), at);
            while sending.is_none() {
                // SAFETY: as above.
                *sending = unsafe { self.send.isend(from, self.bytes, TAG + at as i32, self.from_mr) }?;
            }
        }
        let mut sizes = [-1; 8];
        while sending.iter().any(Option::is_some) || receiving.is_some() {
            for sending in &mut sending {
                if let Some(request) = *sending
                    // SAFETY: in flight on this communicator, and forgotten once complete.
                    && unsafe { self.send.test(request, None) }?
                {
                    *sending = None;
                }
            }
            if let Some(request) = receiving
                // SAFETY: as above.
                && unsafe { self.recv.test(request, Some(&mut sizes)) }?
            {
                receiving = None;
            }
        }
        if sizes.iter().any(|&size| usize::try_from(size) != Ok(self.bytes)) {
            return Err("the plugin reported another size than was sent".into());
        }
        self.planted();
        Ok(())
    }

    /// One message, sent first or received first, until both ends have it.
    fn cycle(&self, send_first: bool) -> Result<(), Box<dyn Error>> {
        let (mut sending, mut receiving) = (None, None);
        let part = NetRecvPart { data: self.into.as_ptr(), bytes: self.bytes, tag: TAG, mr: self.into_mr };
        while send_first && sending.is_none() {
            // SAFETY: registered, and no other message uses the memory.
            sending = unsafe { self.send.isend(self.from.as_ptr(), self.bytes, TAG, self.from_mr) }?;
        }
        while receiving.is_none() {
            // SAFETY: as above.
            receiving = unsafe { self.recv.irecv(&[part], false) }?;
        }
        while sending.is_none() {
            // SAFETY: as above.
            sending = unsafe { self.send.isend(self.from.as_ptr(), self.bytes, TAG, self.from_mr) }?;
        }
        while sending.is_some() || receiving.is_some() {
            if let Some(request) = sending
                // SAFETY: in flight on this communicator, and forgotten once complete.
                && unsafe { self.send.test(request, None) }?
            {
                sending = None;
            }
            let mut sizes = [-1; 8];
            if let Some(request) = receiving
                // SAFETY: as above.
                && unsafe { self.recv.test(request, Some(&mut sizes)) }?
            {
                if usize::try_from(sizes[0]) != Ok(self.bytes) {
                    return Err("the plugin reported another size than was sent".into());
                }
                receiving = None;
            }
        }
        self.planted();
        Ok(())
    }

    fn planted(&self) {
        match self.plant {
            Plant::Nothing => {}
            Plant::Work => (0..WORK).for_each(|n| _ = std::hint::black_box(n)),
            Plant::Syscall => _ = rustix::process::getppid(),
        }
    }
}

/// A process that reads our status page until this is dropped.
struct Reader(Child);

impl Reader {
    fn start() -> Result<Self, Box<dyn Error>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["read", &std::process::id().to_string()]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut reader = Self(command.spawn()?);
        // It writes one byte when it has read the page once.
        let told = reader.0.stdout.take().ok_or("the reader has no output pipe")?.read(&mut [0])?;
        if told == 1 { Ok(reader) } else { Err("the reader found no status page".into()) }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads the status page of a process repeatedly until that process ends.
fn read(pid: &str) -> Result<(), Box<dyn Error>> {
    let mut descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten().map(|entry| entry.path());
    let is_page = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:trunkline.status"))
    };
    let page = File::open(descriptors.find(is_page).ok_or("the process has no status page")?)?;
    let mut bytes = vec![0; usize::try_from(page.metadata()?.len())?];
    page.read_exact_at(&mut bytes, 0)?;
    println!("1");
    while std::fs::exists(format!("/proc/{pid}"))? {
        for _ in 0..1000 {
            page.read_exact_at(&mut bytes, 0)?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [verb, pid] = args.as_slice()
        && verb == "read"
    {
        return read(pid);
    }
    let [plugin, order, bytes, messages] = args.as_slice() else {
        return Err("usage: cycle PLUGIN eager|direct|grouped BYTES MESSAGES".into());
    };
    let (bytes, messages): (usize, usize) = (bytes.parse()?, messages.parse()?);
    let plant = match std::env::var("TRUNKLINE_PLANT").as_deref() {
        Ok("work") => Plant::Work,
        Ok("syscall") => Plant::Syscall,
        _ => Plant::Nothing,
    };
    let plugin = NetPlugin::load(Path::new(plugin), Some(12))?;
    let net = PluginContext::init(&plugin, 1)?;
    let grouped = order == "grouped";
    let ends = Ends::connect(&net, bytes, if grouped { GROUP } else { 1 }, plant)?;
    let reader = if std::env::var("TRUNKLINE_PLANT").is_ok_and(|plant| plant == "reader") {
        Some(Reader::start()?)
    } else {
        None
    };
    for _ in 0..WARMUP + messages {
        if grouped { ends.grouped() } else { ends.cycle(order == "eager") }?;
    }
    drop(reader);
    // SAFETY: no message is in flight.
    let arrived = unsafe { ends.into.slice(0, bytes * ends.parts) };
    if arrived.iter().any(|&byte| byte != 0x5a) {
        return Err("wrong bytes".into());
    }
    Ok(())
}
