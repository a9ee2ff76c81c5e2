//! Parses sizes, and makes the series between two of them. Pure.

/// Parses a size such as `8`, `64K`, `16M` or `1G`.
pub(crate) fn parse(text: &str) -> Result<usize, String> {
    let trimmed = text.trim();
    let digits = trimmed.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match trimmed[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        other => return Err(format!("{other:?} is not a unit; use K, M or G")),
    };
    let number: usize =
        digits.parse().map_err(|_| format!("{text:?} is not a size; write bytes, such as 8, 64K or 16M"))?;
    number
        .checked_mul(unit)
        .filter(|bytes| *bytes <= 1 << 40)
        .ok_or_else(|| format!("{text} is too large; the limit is 1024G"))
}

/// Parses the least receive size in bytes; 0 for `exact`.
pub(crate) fn parse_receive(text: &str) -> Result<usize, String> {
    if text == "exact" { Ok(0) } else { parse(text) }
}

/// Describes receive buffers of at least `least` bytes; of the length of each message if `least` is 0.
pub(crate) fn describe_receives(least: usize) -> String {
    if least == 0 {
        "receive buffers of the message's size".to_owned()
    } else {
        format!("receive buffers of at least {least} B")
    }
}

/// Returns the sizes from the smallest to the largest; the largest is always included.
pub(crate) fn size_series(min: usize, max: usize, factor: usize) -> Vec<usize> {
    let next = |size: &usize| size.checked_mul(factor.max(2)).filter(|size| *size < max);
    let mut sizes: Vec<usize> = std::iter::successors(Some(min.max(1)), next).collect();
    if sizes.last() != Some(&max) {
        sizes.push(max);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_and_form_a_series() {
        assert_eq!(parse("8"), Ok(8));
        assert_eq!(parse("64K"), Ok(65536));
        assert_eq!(parse("16MiB"), Ok(16 << 20));
        assert_eq!(parse("1g"), Ok(1 << 30));
        assert_eq!(["exact", "1M"].map(parse_receive), [Ok(0), Ok(1 << 20)]);
        assert!(parse_receive("step").is_err());
        assert!(parse("x").is_err());
        assert!(parse("5T").is_err());
        assert_eq!(size_series(8, 128, 4), [8, 32, 128]);
        assert_eq!(size_series(8, 64, 4), [8, 32, 64]);
        assert_eq!(size_series(5, 5, 2), [5]);
    }
}
