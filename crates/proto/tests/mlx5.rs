//! Entries and completions compared with the vendor's header: a C program of rdma-core's own inline functions and
//! structures encodes and decodes the same values. WAIT and DUMP are not in that header.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on stops")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use trunkline_proto::wire::mlx5::{
    CqeSyndrome, InlineSegment, LocalSegment, Mlx5Completion, Mlx5Entry, Mlx5Fence, Mlx5Work, RemoteSegment,
    lap_bit,
};

const HEADER: &str = "/usr/include/infiniband/mlx5dv.h";

/// A C program that reads lines. For a line of numbers it prints the 64 bytes of an entry, otherwise the fields of the
/// completion whose bytes the line contains.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <string.h>
#include <endian.h>
#include <infiniband/mlx5dv.h>

static void entry(unsigned long long *n) {
    unsigned char block[64] = {0};
    struct mlx5_wqe_ctrl_seg *control = (void *)block;
    struct mlx5_wqe_raddr_seg *remote = (void *)(control + 1);
    void *behind = remote + 1;
    static const unsigned opcodes[] = {MLX5_OPCODE_NOP, MLX5_OPCODE_RDMA_WRITE, MLX5_OPCODE_RDMA_WRITE,
        MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_ATOMIC_FA, MLX5_OPCODE_ATOMIC_CS};
    unsigned kind = n[0];
    static const unsigned char fences[] = {0, MLX5_WQE_CTRL_INITIATOR_SMALL_FENCE, 2 << 5, 3 << 5, MLX5_WQE_CTRL_FENCE};
    unsigned char flags = fences[n[3]] | (n[4] ? MLX5_WQE_CTRL_CQ_UPDATE : 0);
    size_t bytes = sizeof *control;
    if (kind > 0) {
        remote->raddr = htobe64(n[5]);
        remote->rkey = htobe32(n[6]);
        bytes += sizeof *remote;
    }
    if (kind == 4 || kind == 5) {
        struct mlx5_wqe_atomic_seg *atomic = behind;
        atomic->swap_add = htobe64(n[10]);
        if (kind == 5) atomic->compare = htobe64(n[11]);
        behind = atomic + 1;
        bytes += sizeof *atomic;
    }
    if (kind == 2) {
        struct mlx5_wqe_inl_data_seg *own = behind;
        own->byte_count = htobe32((unsigned)n[9] | MLX5_INLINE_SEG);
        memset(own + 1, 0x5a, n[9]);
        bytes += (sizeof *own + n[9] + 15) / 16 * 16;
    } else if (kind > 0 && n[9] > 0) {
        mlx5dv_set_data_seg(behind, n[9], n[8], n[7]);
        bytes += sizeof(struct mlx5_wqe_data_seg);
    }
    mlx5dv_set_ctrl_seg(control, n[1], opcodes[kind], 0, n[2], flags, bytes / 16, 0, 0);
    for (int at = 0; at < 64; at++) printf("%02x", block[at]);
    printf("\n");
}

int main(void) {
    char line[512];
    while (fgets(line, sizeof line, stdin)) {
        unsigned long long n[12];
        if (line[0] == 'e') {
            char *at = line + 1;
            for (int i = 0; i < 12; i++) { int used; if (sscanf(at, "%llu%n", &n[i], &used) != 1) return 1; at += used; }
            entry(n);
        } else {
            struct mlx5_cqe64 cqe;
            for (int at = 0; at < 64; at++) { unsigned byte; if (sscanf(line + 1 + 2 * at, "%2x", &byte) != 1) return 1; ((unsigned char *)&cqe)[at] = byte; }
            struct mlx5_err_cqe *bad = (void *)&cqe;
            int failed = mlx5dv_get_cqe_opcode(&cqe) == MLX5_CQE_REQ_ERR;
            if (!failed && mlx5dv_get_cqe_opcode(&cqe) != MLX5_CQE_REQ) return 1;
            printf("%u %u %u %u %llu %u %u\n", mlx5dv_get_cqe_owner(&cqe), be32toh(cqe.sop_drop_qpn) & 0xffffff,
                be16toh(cqe.wqe_counter), failed ? 0 : be32toh(cqe.byte_cnt),
                failed ? 0ull : (unsigned long long)be64toh(cqe.timestamp), failed ? bad->syndrome : 0,
                failed ? bad->vendor_err_synd : 0);
        }
    }
    printf("%d %d %d\n", MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR, MLX5_CQE_SYNDROME_WR_FLUSH_ERR, MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR);
    return 0;
}
"#;

/// A repeatable source of numbers (xorshift).
struct Dice(u64);

impl Dice {
    fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // Often the bounds of a range.
        match self.0 % 8 {
            0 => 0,
            1 => u64::MAX,
            _ => self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }
}

/// Returns an entry, and the line that makes the program print it.
fn entry(dice: &mut Dice) -> (Mlx5Entry, String) {
    const FENCES: [Mlx5Fence; 5] =
        [Mlx5Fence::None, Mlx5Fence::Small, Mlx5Fence::ReadsAndAtomics, Mlx5Fence::Strong, Mlx5Fence::Verbs];
    let (kind, fence, signalled) = (dice.below(6), dice.below(5), dice.below(2));
    let (index, qp) = (dice.draw() as u16, dice.draw() as u32 & 0xff_ffff);
    let remote = RemoteSegment { addr: dice.draw(), key: dice.draw() as u32 };
    let (addr, key, [one, other]) = (dice.draw(), dice.draw() as u32, [dice.draw(), dice.draw()]);
    let len = match kind {
        2 => 1 + dice.below(28),
        1 => dice.below((1 << 30) + 1),
        3 => 1 + dice.below(1 << 30),
        _ => 8,
    };
    let (local, old) = (LocalSegment::new(addr, key, len as u32), LocalSegment::of_word(addr, key));
    let work = match kind {
        0 => Mlx5Work::Nop,
        1 => Mlx5Work::Write(remote, local),
        2 => Mlx5Work::WriteInline(remote, InlineSegment::new(&[0x5a; 28][..len as usize]).unwrap()),
        3 => Mlx5Work::Read(remote, local.unwrap()),
        4 => Mlx5Work::FetchAdd { word: remote, add: one, old },
        _ => Mlx5Work::CompareSwap { word: remote, swap: one, compare: other, old },
    };
    let entry = Mlx5Entry { index, qp, fence: FENCES[fence as usize], signalled: signalled == 1, work };
    let RemoteSegment { addr: raddr, key: rkey } = remote;
    let line =
        format!("e {kind} {index} {qp} {fence} {signalled} {raddr} {rkey} {addr} {key} {len} {one} {other}");
    (entry, line)
}

/// Returns a completion, the line with its bytes for the program, and the output that the program must print.
fn completion(dice: &mut Dice) -> (String, String) {
    let (qp, index, lap) = (dice.draw() as u32 & 0xff_ffff, dice.draw(), lap_bit(dice.draw(), 8));
    let failed =
        (dice.below(2) == 1).then(|| (CqeSyndrome::from_number(dice.draw() as u8), dice.draw() as u8));
    let (bytes, time) = if failed.is_some() { (0, 0) } else { (dice.draw() as u32, dice.draw()) };
    let completion = Mlx5Completion { qp, index: index as u16, bytes, time, failed };
    let mut line = "c".to_owned();
    completion.to_bytes(lap).iter().for_each(|byte| write!(line, "{byte:02x}").unwrap());
    let (syndrome, vendor) = failed.map_or((0, 0), |(syndrome, vendor)| (syndrome.to_number(), vendor));
    (line, format!("{} {qp} {} {bytes} {time} {syndrome} {vendor}", u8::from(lap), index as u16))
}

fn skip(reason: &str) {
    println!("SKIPPED mlx5 against its header: {reason}");
    if let Some(path) = std::env::var_os("TRUNKLINE_SKIP_LOG") {
        let mut log = std::fs::File::options().append(true).create(true).open(path).unwrap();
        writeln!(log, "mlx5 against its header: {reason}").unwrap();
    }
}

#[test]
fn entries_and_completions_match_the_vendors_header() {
    if !Path::new(HEADER).exists() {
        return skip("no infiniband/mlx5dv.h (package libibverbs-dev)");
    }
    let folder = std::env::temp_dir().join(format!("trunkline-mlx5-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, program) = (folder.join("mlx5.c"), folder.join("mlx5"));
    std::fs::write(&source, PROGRAM).unwrap();
    let built = Command::new("cc").args(["-O1", "-w", "-o"]).arg(&program).arg(&source).status().unwrap();
    assert!(built.success(), "the C program cannot be compiled");
    let mut dice = Dice(0x5eed_0123_4567_89ab);
    let (mut lines, mut expected) = (String::new(), Vec::new());
    for _ in 0..3000 {
        let (entry, line) = entry(&mut dice);
        writeln!(lines, "{line}").unwrap();
        expected
            .push(entry.to_bytes().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}")));
        let (line, said) = completion(&mut dice);
        writeln!(lines, "{line}").unwrap();
        expected.push(said);
    }
    expected.push("19 5 34".to_owned());
    assert_eq!(
        [CqeSyndrome::RemoteAccess, CqeSyndrome::Flushed, CqeSyndrome::RemoteAborted]
            .map(CqeSyndrome::to_number),
        [19, 5, 34]
    );
    let mut child = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    assert!(output.status.success(), "{}", output.status);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said.lines().count(), expected.len());
    for (said, expected) in said.lines().zip(&expected) {
        assert_eq!(said, expected);
    }
}
