//! What the fuzz targets of the launcher do with their input: streams of frames. Whatever parses must print to what parses to the same.

use trunkline_proto::fuzzing::variants;

use super::frame::{self, Ending, Frame, RankStart, Ready, Start, VERSION};

/// Several frames in one stream.
pub(crate) fn frames(mut bytes: &[u8]) {
    while let Ok(Some(frame)) = frame::receive(&mut bytes) {
        let mut printed = Vec::new();
        // A frame that was read is at most as long once more, unless its JSON had fewer blanks than ours.
        if frame::send(&mut printed, &frame).is_ok() {
            let again = frame::receive(&mut printed.as_slice());
            assert!(again.is_ok_and(|again| again == Some(frame)), "a frame changed on its way");
        }
    }
}

/// One stream of each kind of frame.
pub(super) fn every_frame() -> Vec<Frame> {
    let start = Start {
        program: "p".into(),
        arguments: vec!["\u{fc} \n".into()],
        directory: "/".into(),
        variables: vec![("A".into(), "b=c".into())],
        ranks: vec![RankStart { rank: 3, variables: vec![("RANK".into(), "3".into())] }],
    };
    vec![
        Frame::Ready(Ready { version: VERSION, port: 20_001, addresses: vec!["10.0.0.1".into()] }),
        Frame::Start(start),
        Frame::Output(1, vec![0, 255, b'\n']),
        Frame::Errors(2, Vec::new()),
        Frame::Pmi(3, "cmd=init pmi_version=1 pmi_subversion=1".into()),
        Frame::Exited(4, Ending::Code(-1)),
        Frame::Exited(5, Ending::Signal(i32::MAX)),
        Frame::Signal(15),
        Frame::Failed("why".into()),
    ]
}

pub(crate) fn frame_seeds() -> Vec<Vec<u8>> {
    let all: Vec<Vec<u8>> = every_frame().iter().map(bytes_of).collect();
    let mut seeds = variants(&all);
    seeds.push(all.concat());
    seeds.push(b"Welcome to node7!\n".to_vec());
    seeds
}

pub(super) fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    let sent = frame::send(&mut bytes, frame);
    assert!(sent.is_ok());
    bytes
}
