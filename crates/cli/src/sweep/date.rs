//! The day, for the head of a report. Pure.

/// The day of a time in seconds since 1970, in UTC, as `2026-11-22`.
///
/// Years begin in March here, so that a leap day is the last of its year.
pub(super) fn of_unix(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let era = days / 146_097;
    let day = days % 146_097;
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    format!("{:04}-{month:02}-{day:02}", year + 400 * era)
}

#[cfg(test)]
mod tests {
    use super::of_unix;

    #[test]
    fn days_are_those_of_the_calendar() {
        let days = [0, 951_782_400, 951_868_800, 1_709_164_800, 1_735_689_599, 1_735_689_600, 4_107_542_400];
        let known = [
            "1970-01-01",
            "2000-02-29",
            "2000-03-01",
            "2024-02-29",
            "2024-12-31",
            "2025-01-01",
            "2100-03-01",
        ];
        assert_eq!(days.map(of_unix), known);
    }
}
