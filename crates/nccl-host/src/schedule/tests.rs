//! Simulates the schedules of all ranks against each other: every collective, rank count and channel count.

use super::*;

/// One rank with a value for each byte: the sum of the (rank, byte) pairs that contributed to it.
struct Paper {
    schedule: RankSchedule,
    done: Vec<bool>,
    at: [Vec<usize>; 3],
    spaces: [Vec<u64>; 3],
    offsets: (usize, usize),
}

impl Paper {
    fn place(&self, place: BufferOffset) -> (usize, usize) {
        match place.space {
            BufferSpace::Send if self.offsets.0 != usize::MAX => (1, place.offset + self.offsets.0),
            BufferSpace::Send => (0, place.offset),
            BufferSpace::Recv => (1, place.offset + self.offsets.1),
            BufferSpace::Scratch => (2, place.offset),
        }
    }
    fn read(&self, place: BufferOffset, bytes: usize) -> Vec<u64> {
        let (space, offset) = self.place(place);
        self.spaces[space][offset..offset + bytes].to_vec()
    }
    fn write(&mut self, place: BufferOffset, values: &[u64]) {
        let (space, offset) = self.place(place);
        self.spaces[space][offset..offset + values.len()].copy_from_slice(values);
    }
    /// Returns the next step of a queue, if it may run.
    fn head(&self, kind: usize, queue: usize) -> Option<StepId> {
        let queues =
            [&self.schedule.send_queues, &self.schedule.recv_queues, &self.schedule.local_queues][kind];
        let id = *queues[queue].get(self.at[kind][queue])?;
        let after = self.schedule.steps[id as usize].after;
        after.iter().all(|after| *after == NONE || self.done[*after as usize]).then_some(id)
    }
    fn finish(&mut self, kind: usize, queue: usize, id: StepId) {
        self.done[id as usize] = true;
        self.at[kind][queue] += 1;
    }
}

fn contribution(rank: usize, byte: usize) -> u64 {
    (rank as u64 + 1) * 1_000_003 + byte as u64 * 31
}

fn build(collective: Collective, ranks: usize, channels: usize, in_place: bool, block: usize) -> Vec<Paper> {
    (0..ranks)
        .map(|rank| {
            let plan = SchedulePlan {
                collective,
                dtype: DataType::Uint8,
                op: RedOp::Sum,
                block,
                rank,
                ranks,
                root: 1,
                in_place,
                channels,
                chunk: 3,
                slot: 5,
            };
            let schedule = RankSchedule::build(&plan);
            let scratch = RankSchedule::scratch_bytes(
                ConnectionGraph::for_collective(collective, 1),
                rank,
                ranks,
                channels,
                5,
            );
            let total = block * ranks;
            let mut paper = Paper {
                done: vec![false; schedule.steps.len()],
                at: [
                    vec![0; schedule.send_queues.len()],
                    vec![0; schedule.recv_queues.len()],
                    vec![0; schedule.local_queues.len()],
                ],
                schedule,
                spaces: [vec![0; total], vec![0; total], vec![0; scratch]],
                offsets: (usize::MAX, 0),
            };
            if in_place {
                paper.offsets = collective.in_place_offsets(block, rank, 1);
            }
            let counts = collective.element_counts(block_total(collective, block, ranks), ranks);
            assert_eq!(counts.block, block);
            let values: Vec<u64> = (0..counts.send).map(|byte| contribution(rank, byte)).collect();
            paper.write(send_at(0), &values);
            paper
        })
        .collect()
}

fn block_total(collective: Collective, block: usize, ranks: usize) -> usize {
    collective.algorithm_bytes(block, ranks)
}

/// Moves one message if its sender may send it and its receiver has room. No message is ever buffered, so a schedule
/// that depends on buffers in the network deadlocks here.
fn transfer(papers: &mut [Paper], graph: ConnectionGraph, rank: usize, queue: usize) -> bool {
    let ranks = papers.len();
    let out = graph.peers_out(rank, ranks);
    let (to, channel) = (out[queue % out.len()], queue / out.len());
    let inn = graph.peers_in(to, ranks);
    let peer_queue = channel * inn.len() + inn.iter().position(|from| *from == rank).expect("a link back");
    let Some(send) = papers[rank].head(0, queue) else { return false };
    let Some(recv) = papers[to].head(1, peer_queue) else { return false };
    let (send_step, recv_step) =
        (papers[rank].schedule.steps[send as usize], papers[to].schedule.steps[recv as usize]);
    let (StepWork::Send { from, .. }, StepWork::Recv { into, .. }) = (send_step.work, recv_step.work) else {
        panic!("a queue with a foreign step")
    };
    assert_eq!(send_step.bytes, recv_step.bytes, "a send of another size");
    let data = papers[rank].read(from, send_step.bytes);
    papers[to].write(into, &data);
    papers[rank].finish(0, queue, send);
    papers[to].finish(1, peer_queue, recv);
    true
}

fn local(paper: &mut Paper, queue: usize) -> bool {
    let Some(id) = paper.head(2, queue) else { return false };
    let step = paper.schedule.steps[id as usize];
    match step.work {
        StepWork::Reduce { into, a, b, .. } => {
            let (a, b) = (paper.read(a, step.bytes), paper.read(b, step.bytes));
            let sum: Vec<u64> = a.iter().zip(&b).map(|(x, y)| x + y).collect();
            paper.write(into, &sum);
        }
        StepWork::Copy { into, from } => {
            let data = paper.read(from, step.bytes);
            paper.write(into, &data);
        }
        StepWork::Send { .. } | StepWork::Recv { .. } => panic!("a queue with a foreign step"),
    }
    paper.finish(2, queue, id);
    true
}

fn run(collective: Collective, papers: &mut [Paper]) {
    let graph = ConnectionGraph::for_collective(collective, 1);
    loop {
        let mut moved = false;
        for rank in 0..papers.len() {
            for queue in 0..papers[rank].at[0].len() {
                moved |= transfer(papers, graph, rank, queue);
            }
            for queue in 0..papers[rank].at[2].len() {
                moved |= local(&mut papers[rank], queue);
            }
        }
        if !moved {
            break;
        }
    }
    for paper in papers.iter() {
        assert!(paper.done.iter().all(|done| *done), "{collective} with {} ranks is stuck", papers.len());
    }
}

fn expected(collective: Collective, ranks: usize, rank: usize, block: usize) -> Vec<Option<u64>> {
    let all = |byte: usize| Some((0..ranks).map(|r| contribution(r, byte)).sum());
    let root = 1;
    match collective {
        Collective::AllReduce => (0..block).map(all).collect(),
        Collective::Reduce => {
            if rank == root {
                (0..block).map(all).collect()
            } else {
                Vec::new()
            }
        }
        Collective::ReduceScatter => (0..block).map(|byte| all(rank * block + byte)).collect(),
        Collective::AllGather => {
            (0..block * ranks).map(|byte| Some(contribution(byte / block, byte % block))).collect()
        }
        Collective::Gather if rank == root => {
            (0..block * ranks).map(|byte| Some(contribution(byte / block, byte % block))).collect()
        }
        Collective::Gather => Vec::new(),
        Collective::Scatter => (0..block).map(|byte| Some(contribution(root, rank * block + byte))).collect(),
        Collective::Broadcast => (0..block).map(|byte| Some(contribution(root, byte))).collect(),
        Collective::SendRecv => {
            (0..block).map(|byte| Some(contribution((rank + ranks - 1) % ranks, byte))).collect()
        }
        Collective::AllToAll | Collective::AllToAllV => {
            let mut out = vec![None; block * ranks];
            for peer in 0..ranks {
                let (at, len) = collective.block_between(block, ranks, rank, peer);
                let (from, _) = collective.block_between(block, ranks, peer, rank);
                for byte in 0..len {
                    out[at + byte] = Some(contribution(peer, from + byte));
                }
            }
            out
        }
    }
}

#[test]
fn all_collectives_end_with_the_right_bytes() {
    for collective in Collective::ALL.iter().copied() {
        for ranks in [2, 3, 4, 7] {
            for (channels, block) in [(1, 1), (1, 40), (1, 130), (2, 40), (3, 7)] {
                for in_place in [false, true] {
                    let mut papers = build(collective, ranks, channels, in_place, block);
                    run(collective, &mut papers);
                    for (rank, paper) in papers.iter().enumerate() {
                        let want = expected(collective, ranks, rank, block);
                        let found = paper.read(recv_at(0), want.len());
                        for (byte, value) in want.iter().enumerate() {
                            if let Some(value) = value {
                                assert_eq!(
                                    found[byte], *value,
                                    "{collective} n={ranks} c={channels} block={block} in_place={in_place} rank {rank} byte {byte}"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}
