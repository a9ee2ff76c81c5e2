use alloc::string::String;
use alloc::vec::Vec;

use super::*;

fn notice(lines: &[(NoticeKind, &str)]) -> StartNotice {
    let mut notice = StartNotice::new();
    lines.iter().for_each(|(kind, text)| notice.add_lines(*kind, text));
    notice
}

fn texts(notice: &StartNotice) -> Vec<&str> {
    notice.iter_lines().map(|line| line.text).collect()
}

#[test]
fn notice_has_the_documented_layout() {
    let notice = notice(&[(NoticeKind::Invalid, "A=x"), (NoticeKind::Warning, "b\u{e9}")]);
    assert_eq!(notice.as_bytes(), b"TRSN\x01\0\0\0\x02\x03\0A=x\x01\x03\0b\xc3\xa9");
    assert_eq!(StartNotice::from_bytes(notice.as_bytes()), Ok(notice.clone()));
    assert!(notice.is_refusal());
    assert_eq!(StartNotice::new().as_bytes(), b"TRSN\x01\0\0\0");
}

#[test]
fn warning_is_no_refusal() {
    assert!(!notice(&[(NoticeKind::Warning, "w")]).is_refusal() && !StartNotice::new().is_refusal());
}

#[test]
fn text_becomes_printable_lines() {
    let notice = notice(&[(NoticeKind::Invalid, "one\n\n  \ntw\u{7}o\r\n\u{85}\u{9f}\u{a0}\u{bf}")]);
    assert_eq!(texts(&notice), ["one", "tw?o?", "\u{bf}\u{bf}\u{a0}\u{bf}"]);
    assert_eq!(StartNotice::from_bytes(notice.as_bytes()), Ok(notice.clone()));
}

#[test]
fn lines_beyond_the_limit_are_counted() {
    let mut notice = StartNotice::new();
    let line = "x".repeat(250);
    for _ in 0..6 {
        notice.add_lines(NoticeKind::Invalid, &line);
    }
    // A short line behind one that is left out would suggest that the list is complete.
    notice.add_lines(NoticeKind::Warning, "w");
    assert_eq!((notice.iter_lines().count(), notice.left_out()), (4, 3));
    assert_eq!(notice.as_bytes().len(), 8 + 4 * 253);
    assert_eq!(StartNotice::from_bytes(notice.as_bytes()), Ok(notice.clone()));
}

#[test]
fn last_line_may_fill_the_notice() {
    let first = "a".repeat(NOTICE_BYTES_MAX - 8 - 3 - 3 - 1);
    let filled = notice(&[(NoticeKind::Invalid, &first), (NoticeKind::Invalid, "b")]);
    assert_eq!((filled.as_bytes().len(), filled.left_out()), (NOTICE_BYTES_MAX, 0));
    let over = notice(&[(NoticeKind::Invalid, &first), (NoticeKind::Invalid, "bc")]);
    assert_eq!((over.iter_lines().count(), over.left_out()), (1, 1));
}

#[test]
fn first_line_is_cut_between_characters() {
    for len in [NOTICE_BYTES_MAX - 11, NOTICE_BYTES_MAX - 10, 5000] {
        let text: String = core::iter::once('a').chain(core::iter::repeat_n('\u{e9}', len / 2)).collect();
        let cut = notice(&[(NoticeKind::Invalid, &text)]);
        assert!(cut.as_bytes().len() <= NOTICE_BYTES_MAX && cut.left_out() == 0);
        let line = texts(&cut)[0];
        let is_whole = 11 + text.len() <= NOTICE_BYTES_MAX;
        assert_eq!((line == text, line.ends_with("\u{e9}...")), (is_whole, !is_whole));
        assert_eq!(StartNotice::from_bytes(cut.as_bytes()), Ok(cut.clone()));
    }
}

#[test]
fn bytes_that_are_no_notice_are_refused() {
    let bytes = notice(&[(NoticeKind::Invalid, "A=x")]).as_bytes().to_vec();
    let changed = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        StartNotice::from_bytes(&bytes).map(|_| ())
    };
    assert_eq!(changed(3, b'X'), Err(StartNoticeError::Foreign));
    assert_eq!(changed(4, 2), Err(StartNoticeError::Version(2)));
    assert_eq!(changed(8, 0), Err(StartNoticeError::Kind(0)));
    assert_eq!(changed(8, 3), Err(StartNoticeError::Kind(3)));
    assert_eq!(changed(9, 4), Err(StartNoticeError::Length(14)));
    assert_eq!(changed(9, 2), Err(StartNoticeError::Kind(b'x')));
    for (at, value) in [(11, b'\n'), (13, 0x7f), (12, 0xff)] {
        assert_eq!(changed(at, value), Err(StartNoticeError::Text));
    }
    for len in [0, 3, 5, 7, 9, 10, 13] {
        assert_eq!(StartNotice::from_bytes(&bytes[..len]), Err(StartNoticeError::Length(len)));
    }
    assert_eq!(StartNotice::from_bytes(b"TRSN\x01\0\0\0\x01\0\0"), Err(StartNoticeError::Text));
    assert_eq!(StartNotice::from_bytes(b"TRSN\x01\0\x01\0"), Err(StartNoticeError::Text));
    assert_eq!(StartNotice::from_bytes(b"TRSN\x01\0\0\0\x01\x02\0\xc2\x80"), Err(StartNoticeError::Text));
    let long = [&bytes[..], &[0; NOTICE_BYTES_MAX]].concat();
    assert_eq!(StartNotice::from_bytes(&long), Err(StartNoticeError::Length(NOTICE_BYTES_MAX + 14)));
}
