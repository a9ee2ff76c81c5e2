//! Logarithmic axes: positions of values and ticks, and their labels. Pure.
//!
//! Called by `picture`, and by the curves of `sweep`.

/// A logarithmic axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogAxis {
    /// Logarithms of the lowest and the highest value.
    low: f64,
    high: f64,
    /// Positions of the ends on the paper.
    from: f64,
    to: f64,
}

/// The smallest and the largest value of an axis, both above zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AxisRange {
    /// The smallest value.
    pub(crate) low: f64,
    /// The largest value.
    pub(crate) high: f64,
}

/// A line of the grid.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AxisTick {
    /// The value of the line.
    pub(crate) value: f64,
    /// The label; lines without one are drawn lighter.
    pub(crate) label: Option<String>,
}

/// Units: value and name of each.
type UnitScale = [(f64, &'static str)];

const BYTES: &UnitScale = &[
    (1.0, "B"),
    (1024.0, "KiB"),
    (1_048_576.0, "MiB"),
    (1_073_741_824.0, "GiB"),
    (1_099_511_627_776.0, "TiB"),
];

const TIMES: &UnitScale = &[(1e-3, "ns"), (1.0, "\u{b5}s"), (1e3, "ms"), (1e6, "s")];

/// Least ratio between an end of an axis and the outermost value.
const AIR: f64 = 1.15;

/// Most labels of an axis of sizes.
const SIZE_LABELS_MAX: u32 = 8;

impl LogAxis {
    /// Creates an axis that shows all values of a range: the lowest is drawn at `from` on the paper, the highest at
    /// `to`.
    pub(crate) fn new(values: AxisRange, from: f64, to: f64) -> Self {
        Self { low: values.low.ln(), high: values.high.ln(), from, to }
    }

    /// The position of a value on the paper.
    pub(crate) fn position_of(&self, value: f64) -> f64 {
        self.from + (value.ln() - self.low) / (self.high - self.low) * (self.to - self.from)
    }
}

/// The smallest and the largest of some values above zero.
pub(crate) fn value_range(values: impl Iterator<Item = f64>) -> AxisRange {
    values.fold(AxisRange { low: f64::MAX, high: f64::MIN_POSITIVE }, |range, value| AxisRange {
        low: range.low.min(value),
        high: range.high.max(value),
    })
}

/// Powers of two within the range, evenly spaced and few enough for labels; the ends of the range if it contains none.
pub(crate) fn size_ticks(sizes: AxisRange) -> Vec<AxisTick> {
    let AxisRange { low, high } = sizes;
    // A size just off a power of two by rounding is that power.
    let first = (low.log2() - 1e-9).ceil() as u32;
    let last = (high.log2() + 1e-9).floor() as u32;
    let step = (1..).find(|step| (last.saturating_sub(first)) / step < SIZE_LABELS_MAX).unwrap_or(1);
    let tick = |exponent: u32| {
        let value = 2f64.powi(exponent as i32);
        AxisTick { value, label: Some(format_size(value)) }
    };
    let ticks: Vec<AxisTick> = (first..=last).step_by(step as usize).map(tick).collect();
    if ticks.is_empty() {
        let mut ends = vec![low, high];
        ends.dedup();
        return ends.into_iter().map(|value| AxisTick { value, label: Some(format_size(value)) }).collect();
    }
    ticks
}

/// Decades, with labels at 2 and 5 too if there are few, and the range widened to the next 1, 2 or 5.
pub(crate) fn decimal_ticks(values: AxisRange, label: impl Fn(f64) -> String) -> (AxisRange, Vec<AxisTick>) {
    let AxisRange { low, high } = values;
    let decades = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
    let all = |digits: &'static [u32]| {
        decades.clone().flat_map(move |decade| {
            digits.iter().map(move |digit| (*digit, f64::from(*digit) * 10f64.powi(decade)))
        })
    };
    let below = all(&[1, 2, 5]).map(|(_, value)| value).rfind(|value| *value <= low / AIR);
    let above = all(&[1, 2, 5]).map(|(_, value)| value).find(|value| *value >= high * AIR);
    let below = below.unwrap_or(low / 2.0);
    let above = above.unwrap_or(high * 2.0);
    let named: &[u32] = if above / below > 300.0 { &[1] } else { &[1, 2, 5] };
    let inside = |value: f64| value >= below * 0.999 && value <= above * 1.001;
    let ticks = all(&[1, 2, 3, 4, 5, 6, 7, 8, 9]).filter(|(_, value)| inside(*value));
    let ticks =
        ticks.map(|(digit, value)| AxisTick { value, label: named.contains(&digit).then(|| label(value)) });
    (AxisRange { low: below, high: above }, ticks.collect())
}

/// Formats a size in bytes: `8 B`, `64 KiB`, `1 MiB`.
pub(crate) fn format_size(bytes: f64) -> String {
    in_units(bytes, BYTES)
}

/// Formats a time in microseconds: `500 ns`, `20 us`, `1.5 ms`.
pub(crate) fn format_time(microseconds: f64) -> String {
    in_units(microseconds, TIMES)
}

/// Formats three digits, without trailing zeros.
pub(crate) fn format_number(value: f64) -> String {
    let decimals = (2 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn in_units(value: f64, units: &UnitScale) -> String {
    // 999.7 would be written as 1000.
    let fitting = units.iter().rev().find(|(worth, _)| value >= worth * 0.9995);
    let (worth, name) = fitting.or(units.first()).copied().unwrap_or((1.0, ""));
    format!("{} {name}", format_number(value / worth))
}
