//! The map: bus bandwidth of each configuration relative to the first, by collective.

use svg::node::element::Element;

use super::column_heads;
use super::element::{ElementBuilder as _, html_element, table_row, text_element};
use crate::sweep::SweepPlan;
use crate::sweep::results::{RoundSpread, SweepCell, SweepResults};

/// A ratio at least this far from 1 has the full colour.
const FULL: f64 = 2.0;

/// The section with the table and its explanation.
pub(super) fn heat_section(plan: &SweepPlan, results: &SweepResults) -> Element {
    let first = plan.configurations.first().map_or_else(String::new, ToString::to_string);
    let told = format!(
        "Bus bandwidth relative to {first}: the geometric mean over all sizes, the median of the rounds, and below \
         it the smallest and the largest of them. Each round is compared with the same round of {first}; the column \
         of {first} itself shows how far its rounds are from their median. A cell has a colour if all its rounds are on \
         one side of 1: blue for faster, orange for slower."
    );
    let body = results.by_collective().map(|cells| {
        let name = cells.first().map_or("", |cell| cell.collective.name());
        let ratios = cells.iter().map(|one| ratio_cell(one, one.relative_bandwidth(&cells[0])));
        table_row(std::iter::once(text_element("th", name).set("scope", "row")).chain(ratios))
    });
    let table = body
        .fold(html_element("table").set("class", "heat").add(column_heads(plan)), |table, line| {
            table.add(line)
        });
    let table = if results.by_collective().count() > 1 { table.add(mean_row(plan, results)) } else { table };
    html_element("section")
        .add(text_element("h2", format!("Bus bandwidth relative to {first}")))
        .add(text_element("p", told))
        .add(html_element("div").set("class", "wide").add(table))
}

fn ratio_cell(one: &SweepCell, ratio: RoundSpread) -> Element {
    let tip = format!("{}, {}", one.collective, one.configuration.to_words());
    let spread = text_element("small", format!("{:.2}\u{2013}{:.2}", ratio.low, ratio.high));
    let value = text_element("b", format!("{:.2}", ratio.median));
    let told = ratio.low > 1.0 || ratio.high < 1.0;
    let colour = cell_colour(if told { ratio.median } else { 1.0 });
    html_element("td").set("style", colour).set("title", tip).add(value).add(spread)
}

/// The geometric mean of each column.
fn mean_row(plan: &SweepPlan, results: &SweepResults) -> Element {
    let mean = |at: usize| {
        let logs = results.by_collective().map(|cells| cells[at].relative_bandwidth(&cells[0]).median.ln());
        let (sum, count) = logs.fold((0.0, 0.0), |(sum, count), log| (sum + log, count + 1.0));
        let ratio: f64 = (sum / count).exp();
        html_element("td").add(text_element("b", format!("{ratio:.2}")))
    };
    let head = text_element("th", "all").set("scope", "row");
    table_row(std::iter::once(head).chain((0..plan.configurations.len()).map(mean))).set("class", "mean")
}

/// Blue for faster, orange for slower, none at 1. Transparent, so that it suits light and dark screens.
fn cell_colour(ratio: f64) -> String {
    let strength = (ratio.log2() / FULL.log2()).clamp(-1.0, 1.0) * 0.6;
    let strength = if strength.is_finite() { strength } else { 0.0 };
    let colour = if strength > 0.0 { "0,114,178" } else { "230,120,0" };
    format!("background:rgba({colour},{:.2})", strength.abs())
}

#[cfg(test)]
mod tests {
    use super::cell_colour;

    #[test]
    fn colours_distinguish_faster_from_slower() {
        assert_eq!(cell_colour(2.0), "background:rgba(0,114,178,0.60)");
        assert_eq!(cell_colour(9.0), cell_colour(2.0));
        assert_eq!(cell_colour(0.5), "background:rgba(230,120,0,0.60)");
        assert_eq!(cell_colour(1.0), "background:rgba(230,120,0,0.00)");
        assert_eq!(cell_colour(f64::NAN), cell_colour(1.0), "nothing was measured");
    }
}
