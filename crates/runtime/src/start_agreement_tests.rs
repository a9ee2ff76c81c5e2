use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use trunkline_bootstrap::{JobEnvironment, JobSecret, free_port, trunkline_run};
use trunkline_proto::wire::start_notice::StartNoticeError;

use super::*;

const WRONG: &str = "TRUNKLINE_DEPTH=x: expected a number from 32 to 32768";
const UNKNOWN: &str = "TRUNKLINE_DEPHT is not a setting; did you mean TRUNKLINE_DEPTH?";

fn notice(lines: &[(NoticeKind, &str)]) -> Vec<u8> {
    let mut notice = StartNotice::new();
    lines.iter().for_each(|(kind, text)| notice.add_lines(*kind, text));
    notice.as_bytes().to_vec()
}

fn shown(notices: &[Vec<u8>]) -> (Option<usize>, Vec<String>, Vec<String>) {
    let MergedNotices { size, first_refusal, invalid, warnings } = MergedNotices::merge_all(notices).unwrap();
    (first_refusal, invalid.to_lines(size), warnings.to_lines(size))
}

#[test]
fn line_of_one_rank_names_that_rank() {
    let mut notices = vec![notice(&[]); 8];
    notices[3] = notice(&[(NoticeKind::Invalid, WRONG)]);
    assert_eq!(shown(&notices), (Some(3), vec![format!("rank 3: {WRONG}")], Vec::new()));
}

#[test]
fn same_line_of_all_ranks_is_one() {
    let own = notice(&[(NoticeKind::Invalid, WRONG), (NoticeKind::Warning, UNKNOWN)]);
    let lines = (Some(0), vec![format!("all 8 ranks: {WRONG}")], vec![format!("all 8 ranks: {UNKNOWN}")]);
    assert_eq!(shown(&vec![own; 8]), lines);
}

#[test]
fn warnings_alone_refuse_nothing() {
    let mut notices = vec![notice(&[(NoticeKind::Warning, UNKNOWN)]); 4];
    notices[1] = notice(&[]);
    assert_eq!(shown(&notices), (None, Vec::new(), vec![format!("ranks 0, 2-3: {UNKNOWN}")]));
}

#[test]
fn lines_of_each_kind_have_a_limit() {
    let line = |rank: usize| format!("A={rank}: expected a number");
    let mut notices: Vec<_> = (0..20).map(|rank| notice(&[(NoticeKind::Invalid, &line(rank))])).collect();
    let long = "x".repeat(600);
    notices.push(notice(&[(NoticeKind::Invalid, &line(0)), (NoticeKind::Warning, &long)]));
    notices.push(notice(&[(NoticeKind::Warning, &long), (NoticeKind::Warning, &long)]));
    let (first, invalid, warnings) = shown(&notices);
    assert_eq!((first, invalid.len(), warnings.len()), (Some(0), 17, 2));
    assert_eq!(invalid[0], format!("ranks 0, 20: {}", line(0)));
    assert_eq!(invalid[16], "4 more such lines; correct these first");
    assert_eq!(warnings, [format!("ranks 20-21: {long}"), "1 more such lines; correct these first".into()]);
}

#[test]
fn ranks_are_listed_as_ranges() {
    let text = |ranks: &[usize]| RankList { ranks, size: 100 }.to_string();
    assert_eq!(text(&[7]), "rank 7");
    assert_eq!(text(&[0, 1, 2, 5, 8, 9]), "ranks 0-2, 5, 8-9");
    let odd: Vec<usize> = (0..12).map(|at| 2 * at).collect();
    assert_eq!(text(&odd), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 4 more");
    assert_eq!(text(&(0..100).collect::<Vec<_>>()), "all 100 ranks");
}

#[test]
fn bytes_of_another_program_name_its_rank() {
    let error = MergedNotices::merge_all(&[notice(&[]), b"TRKR\x04\0\x01\x10".to_vec()]).unwrap_err();
    let expected = StartNoticeError::Foreign;
    assert!(matches!(error, MembershipError::Notice { rank: 1, source } if source == expected), "{error}");
}

#[test]
fn notice_has_errors_before_warnings() {
    let error = ChooseError::NearTcp;
    let notice = write_notice(Some(&error), &[UNKNOWN.to_owned()]);
    let kinds: Vec<_> = notice.iter_lines().map(|line| line.kind).collect();
    assert_eq!(kinds, [NoticeKind::Invalid, NoticeKind::Warning]);
    assert!(write_notice(None, &[]).iter_lines().next().is_none());
}

/// Rank 1 has a wrong setting. Rank 0 logs it slowly.
#[test]
fn no_rank_fails_before_the_line_is_logged() {
    let (port, secret) = (free_port().unwrap(), JobSecret::random().unwrap().to_hex());
    let agree = |rank: usize, notice: &StartNotice, log: &dyn Fn(LogLevel, &str)| {
        let variables = |name: &str| match name {
            trunkline_run::RANK => Some(rank.to_string()),
            trunkline_run::SIZE => Some("2".to_owned()),
            trunkline_run::STORE => Some(format!("127.0.0.1:{port}")),
            trunkline_run::SECRET => Some(secret.clone()),
            _ => None,
        };
        let environment = JobEnvironment::from_variables(&variables).unwrap();
        let mut meeting = JobMeeting::meet_as(environment, Duration::from_secs(30)).unwrap();
        agree_to_start(&mut meeting, notice, log).unwrap_err()
    };
    let (is_logged, has_failed) = (AtomicBool::new(false), AtomicBool::new(false));
    let log_slowly = |level, line: &str| {
        assert_eq!((level, line), (LogLevel::Warn, format!("rank 1: {WRONG}").as_str()));
        let until = Instant::now() + Duration::from_millis(300);
        while !has_failed.load(Ordering::SeqCst) && Instant::now() < until {
            std::thread::yield_now();
        }
        is_logged.store(true, Ordering::SeqCst);
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut notice = StartNotice::new();
            notice.add_lines(NoticeKind::Invalid, WRONG);
            let error = agree(1, &notice, &|_, line| panic!("rank 1 logs {line}"));
            has_failed.store(true, Ordering::SeqCst);
            assert!(is_logged.load(Ordering::SeqCst), "rank 1 fails first");
            error
        });
        let errors = [agree(0, &StartNotice::new(), &log_slowly), other.join().unwrap()];
        for error in errors {
            let MembershipError::Agreed { rank: 1, lines } = error else { panic!("{error}") };
            assert_eq!(lines, [format!("rank 1: {WRONG}")]);
        }
    });
}
