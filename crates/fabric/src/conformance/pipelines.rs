//! Cases: the placement of links on the pipelines of a NIC. A NIC without pipelines reports one, and all cases hold for it too.

use super::pair::{ConformanceSetup, RailPair, TestRegion, default_config};
use crate::{AccessRights, LinkControl, LinkError, LinkId, Op, OpSource, OpStatus, Rail, RailConfig};

/// Most links that a case makes at once.
const MOST: u32 = 64;

fn pipeline_config() -> RailConfig {
    RailConfig { links: MOST, ..default_config() }
}

fn create_checked<R: Rail>(rail: &mut R, pipeline: Option<u32>) -> (LinkId, u32) {
    let link = rail.create_link_on(pipeline).unwrap_or_else(|e| panic!("create on {pipeline:?}: {e}"));
    let at = rail.link_pipeline(link).unwrap_or_else(|| panic!("the link is on no pipeline"));
    assert!(at < rail.caps().pipelines);
    (link, at)
}

/// Links without a requested pipeline fill the pipelines evenly.
pub fn links_are_spread_over_pipelines<S: ConformanceSetup>(setup: &S) {
    let (mut rail, _) = setup.open_rails(&pipeline_config());
    let pipelines = rail.caps().pipelines;
    let mut used = vec![0; pipelines as usize];
    for _ in 0..(3 * pipelines).min(MOST).min(rail.caps().links_max) {
        used[create_checked(&mut rail, None).1 as usize] += 1;
        let most = used.iter().max();
        let fewest = used.iter().min();
        assert!(most.zip(fewest).is_some_and(|(most, fewest)| most - fewest <= 1), "{used:?}");
    }
}

/// A link with a requested pipeline is placed there, and carries work.
pub fn links_are_created_on_the_requested_pipeline<S: ConformanceSetup>(setup: &S) {
    let (a, b) = setup.open_rails(&pipeline_config());
    let mut ends = RailPair { a, b, at_a: LinkId(0), at_b: LinkId(0) };
    let into = TestRegion::new(&ends.b, 64, AccessRights::WRITE);
    for pipeline in (0..ends.a.caps().pipelines).rev().take(8) {
        for _ in 0..2 {
            let there = pipeline % ends.b.caps().pipelines;
            let ((at_a, of_a), (at_b, of_b)) =
                (create_checked(&mut ends.a, Some(pipeline)), create_checked(&mut ends.b, Some(there)));
            assert_eq!((of_a, of_b), (pipeline, there));
            (ends.at_a, ends.at_b) = (at_a, at_b);
            ends.connect_ends();
            ends.on_a(1, Op::Write { from: OpSource::Inline(&[1]), to: into.remote_at(0), imm: None });
            assert_eq!(ends.expect_completions(1, 0).a[0].status, OpStatus::Ok);
        }
    }
    ends.a.destroy_link(ends.at_a);
    assert_eq!(ends.a.link_pipeline(ends.at_a), None);
    assert_eq!(ends.a.link_pipeline(LinkId(u32::MAX)), None);
}

/// A pipeline that does not exist is refused, and no resource is used up.
pub fn unknown_pipelines_are_refused<S: ConformanceSetup>(setup: &S) {
    let (mut rail, _) = setup.open_rails(&RailConfig { links: 2, ..default_config() });
    let count = rail.caps().pipelines;
    for asked in [count, count + 1, u32::MAX].into_iter().cycle().take(30) {
        let error = rail.create_link_on(Some(asked)).err();
        let named = matches!(error, Some(LinkError::NoSuchPipeline { asked: told, pipelines })
            if told == asked && pipelines == count);
        assert!(named, "{error:?}");
    }
    create_checked(&mut rail, None);
    create_checked(&mut rail, Some(count - 1));
}

/// A destroyed link frees its place for the next.
pub fn destroyed_links_leave_their_pipeline<S: ConformanceSetup>(setup: &S) {
    let (mut rail, _) = setup.open_rails(&pipeline_config());
    let pipelines = rail.caps().pipelines.min(MOST / 2);
    let mut links: Vec<(LinkId, u32)> = (0..2 * pipelines).map(|_| create_checked(&mut rail, None)).collect();
    for round in 0..30 {
        let (link, pipeline) = links.swap_remove(round * 7 % links.len());
        rail.destroy_link(link);
        let made = create_checked(&mut rail, None);
        assert_eq!(made.1, pipeline, "round {round}");
        links.push(made);
    }
}

/// The error names a full pipeline while the others have room; then it names the whole NIC.
pub fn full_pipeline_errors_name_the_pipeline<S: ConformanceSetup>(setup: &S) {
    let (mut rail, _) = setup.open_rails(&pipeline_config());
    let pipelines = rail.caps().pipelines;
    let all = rail.caps().links_max;
    if all > MOST {
        return;
    }
    let share = all / pipelines;
    let crowded = pipelines - 1;
    let links: Vec<LinkId> = (0..share).map(|_| create_checked(&mut rail, Some(crowded)).0).collect();
    let full = |rail: &mut S::Rail| {
        let error = rail.create_link_on(Some(crowded)).err();
        let named = matches!(error, Some(LinkError::PipelineExhausted { pipeline, limit })
            if pipeline == crowded && limit == share);
        assert!(named, "{error:?}");
    };
    full(&mut rail);
    for _ in share..all {
        assert_ne!(create_checked(&mut rail, None).1, crowded, "the others have room");
        full(&mut rail);
    }
    let error = rail.create_link().err();
    assert!(matches!(error, Some(LinkError::Exhausted(limit)) if limit == all), "{error:?}");
    rail.destroy_link(links[0]);
    assert_eq!(create_checked(&mut rail, None).1, crowded);
    full(&mut rail);
}
