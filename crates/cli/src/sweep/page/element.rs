//! Short constructors for elements of HTML. Called by the parts of the page.

use svg::node::element::Element;
use svg::node::{Node, Text, Value};

/// An element that can be built in one expression.
pub(super) trait ElementBuilder: Node + Sized {
    /// Sets an attribute.
    fn set(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.assign(name, value);
        self
    }

    /// Appends a child.
    fn add(mut self, child: impl Into<Box<dyn Node>>) -> Self {
        self.append(child);
        self
    }
}

impl ElementBuilder for Element {}

/// An element without content; valid only for the elements that HTML defines as empty.
pub(super) fn html_element(name: &str) -> Element {
    Element::new(name)
}

/// An element of text.
pub(super) fn text_element(name: &str, text: impl AsRef<str>) -> Element {
    html_element(name).add(Text::new(clean_text(text.as_ref())))
}

/// A row of cells.
pub(super) fn table_row(cells: impl IntoIterator<Item = Element>) -> Element {
    cells.into_iter().fold(html_element("tr"), ElementBuilder::add)
}

/// Letters that XML cannot hold become spaces; line ends stay.
fn clean_text(text: &str) -> String {
    let allowed = |letter: char| letter == '\n' || !(letter.is_control() || letter as u32 & 0xfffe == 0xfffe);
    text.chars().map(|letter| if allowed(letter) { letter } else { ' ' }).collect()
}
