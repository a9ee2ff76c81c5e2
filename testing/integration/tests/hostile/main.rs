//! One attacker per finding, each a process of its own, beside an honest pair under traffic (SECURITY.md, "Attacks that are tested").
//!
//! An attack has failed if three conditions hold. The canaries of the pair are neither read nor changed. Every byte of
//! the pair is right, at half of its rate or more (by its own work, see [`world`]). The descriptors, memory and log
//! lines of the victims stay below the numbers of [`world::MOST`].

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot continue must stop")]

mod attacker;
mod canaries;
mod channel;
mod control;
mod echo;
mod exhaust;
mod fabric_number;
mod flood;
mod guest;
mod introduce;
mod intruder;
mod lengths;
mod meeting;
mod one_sided;
mod pair;
mod speak;
mod stay;
mod store;
mod stream;
mod two_sided;
mod user;
mod victim;
mod world;

use channel::TestChannel;
use pair::PairKind;
use world::AttackWorld;

/// The entry of a world's processes: does nothing unless the environment names a part.
#[test]
fn a_process_plays_its_part() {
    let Ok(part) = std::env::var(world::PART) else { return };
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let channel = TestChannel::of_this_process();
    match part.as_str() {
        "victim 0" => victim::play(0, channel),
        "victim 1" => victim::play(1, channel),
        attack => attacker::play(attack, channel),
    }
}

#[test]
fn an_echo_of_the_victims_own_proof_reads_nothing() {
    AttackWorld::new("echo").withstand();
}

#[test]
fn a_third_process_cannot_be_named() {
    AttackWorld::new("third").withstand();
}

#[test]
fn an_echo_of_the_fabric_number_reads_nothing() {
    AttackWorld::new("fabric number").withstand();
}

#[test]
fn another_user_gets_no_frame() {
    AttackWorld::new("other user").withstand();
}

#[test]
fn hello_only_streams_use_few_descriptors() {
    AttackWorld::new("stay").withstand();
}

#[test]
fn excess_pending_streams_use_few_descriptors() {
    AttackWorld::new("hold").withstand();
}

#[test]
fn a_flood_of_refusals_logs_few_lines() {
    AttackWorld::new("refusals").withstand();
}

#[test]
fn a_flood_of_opens_uses_few_resources() {
    AttackWorld::new("opens").withstand();
}

#[test]
fn a_flood_of_events_uses_few_resources() {
    AttackWorld::new("events").with_calls().withstand();
}

#[test]
fn a_member_cannot_impersonate_another() {
    AttackWorld::new("speak").withstand();
}

#[test]
fn lengths_that_overflow_are_not_executed() {
    AttackWorld::new("lengths").withstand();
}

#[test]
fn a_store_without_descriptors_idles_and_recovers() {
    AttackWorld::new("exhaust").with_store().withstand();
}

#[test]
fn hello_only_peers_use_few_control_streams() {
    AttackWorld::new("control stay").over(PairKind::TwoSided).withstand();
}

#[test]
fn a_flood_of_two_sided_opens_uses_few_resources() {
    AttackWorld::new("control opens").over(PairKind::TwoSided).withstand();
}

#[test]
fn frames_for_connections_of_others_change_nothing() {
    AttackWorld::new("control forgery").over(PairKind::TwoSided).withstand();
}

#[test]
fn a_rank_cannot_introduce_itself_as_another() {
    AttackWorld::new("introductions").with_meeting().withstand();
}

#[test]
fn unproven_streams_block_no_link() {
    AttackWorld::new("stream strangers").over(PairKind::OverTcp).withstand();
}

#[test]
fn invalid_frames_end_only_their_own_link() {
    AttackWorld::new("stream frames").over(PairKind::OverTcp).withstand();
}

#[test]
fn invalid_frames_do_not_disturb_the_store() {
    AttackWorld::new("store speech").over(PairKind::OverTcp).with_store().withstand();
}

#[test]
fn silent_streams_are_read_by_turns() {
    AttackWorld::new("silence").withstand();
}

#[test]
fn silent_control_streams_are_read_by_turns() {
    AttackWorld::new("control silence").over(PairKind::TwoSided).withstand();
}
