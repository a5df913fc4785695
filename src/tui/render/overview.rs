//! The overview: its cards in two columns, or in one on a narrow screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};

use crate::export::growth::sparkline;
use crate::export::overview::{FunctionRow, MadeOf, Overview, Part, ROWS};
use crate::tui::state::UiState;
use crate::tui::theme::Theme;
use crate::tui::words::percent;
use crate::tui::wrap::{cut_middle, mark_cut, wrapped, wrapped_to};
use memprof_sys::text::{printable, size};

/// Width of the screen from which on there are two columns of cards, and the space between them.
const TWO_COLUMNS: u16 = 76;
const SPACE: u16 = 2;
/// Maximum number of lines of a sentence.
const SENTENCE: usize = 4;
/// A card has at least this many rows; if they do not fit, the view scrolls.
const MIN_ROWS: usize = 2;
/// Width of a card from which on a function has its size and its growth, a part has a bar, and growth has a picture.
const TWO_FIGURES: usize = 56;
const WITH_BAR: usize = 48;
const WITH_PICTURE: usize = 64;
/// Width of a figure, of the growth in an hour, and of bars and pictures.
const FIGURE: usize = 10;
const RATE: usize = 12;
const PICTURE: usize = 10;
/// A name has at least this part of the width that it shares with its place.
const NAME: usize = 2;

/// What the card of the heap says without a snapshot.
const NO_SNAPSHOT: &str = "No snapshot of the heap yet.";
const HOW: &str = "h takes one: it stops the process for milliseconds, and also shows what was allocated before memprof attached.";

/// A card: a title, a sentence, and the rows that prove it.
struct Card {
    title: &'static str,
    sentence: Vec<String>,
    rows: Vec<Row>,
}

enum Row {
    /// A row of a table.
    Table(Line<'static>),
    /// A line of a text.
    Text(String),
}

impl Card {
    fn new(title: &'static str, sentence: &str, width: usize) -> Card {
        Card {
            title,
            sentence: wrapped_to(&printable(sentence), width, SENTENCE),
            rows: Vec::new(),
        }
    }

    /// Adds a text in lines that have space for a mark.
    fn text(&mut self, text: &str, width: usize) {
        let lines = wrapped(&printable(text), width.saturating_sub(2)).into_iter();
        self.rows.extend(lines.map(Row::Text));
    }

    fn height(&self) -> usize {
        1 + self.sentence.len() + self.rows.len()
    }

    /// Leaves out the last row.
    fn shorten(&mut self, width: usize) {
        self.rows.pop();
        if let Some(Row::Text(last)) = self.rows.last_mut() {
            mark_cut(last, width);
        }
    }

    fn lines(self, width: usize, theme: Theme) -> impl Iterator<Item = Line<'static>> {
        let rule = width.saturating_sub(self.title.len() + 3);
        let title = Line::from(vec![
            Span::styled("─ ", theme.dim()),
            Span::styled(self.title, theme.accent()),
            Span::styled(format!(" {}", "─".repeat(rule)), theme.dim()),
        ]);
        let sentence = self.sentence.into_iter();
        let rows = self.rows.into_iter().map(move |row| match row {
            Row::Table(line) => line,
            Row::Text(text) => Line::styled(text, theme.dim()),
        });
        [title]
            .into_iter()
            .chain(sentence.map(move |line| Line::styled(line, theme.heading())))
            .chain(rows)
    }
}

pub(super) fn render(state: &UiState, frame: &mut Frame<'_>, area: Rect) {
    let top = state.in_overview.top;
    let columns = columns(state, usize::from(area.height));
    let widths = columns.iter().map(|_| Constraint::Fill(1));
    let areas = Layout::horizontal(widths).spacing(SPACE).split(area);
    for (lines, area) in columns.into_iter().zip(areas.iter()) {
        let seen = lines.into_iter().skip(top).collect();
        frame.render_widget(super::paragraph(seen), *area);
    }
}

/// The number of lines that may be the first visible one.
pub(in crate::tui) fn tops(state: &UiState) -> usize {
    let height = state.page();
    let columns = columns(state, height);
    let longest = columns.iter().map(Vec::len).max().unwrap_or(0);
    longest.saturating_sub(height) + 1
}

/// The lines of each column, for so many visible ones.
fn columns(state: &UiState, height: usize) -> Vec<Vec<Line<'static>>> {
    let Some(model) = &state.model else {
        return Vec::new();
    };
    let number = if state.size.0 >= TWO_COLUMNS { 2 } else { 1 };
    let width = usize::from((state.size.0 - (number - 1) * SPACE) / number);
    let mut columns: Vec<Vec<Card>> = (0..number).map(|_| Vec::new()).collect();
    let cards = cards(state, &model.overview, width);
    for (at, card) in cards.into_iter().enumerate() {
        columns[at % usize::from(number)].push(card);
    }
    let lines = |mut cards: Vec<Card>| {
        fit(&mut cards, width, height);
        let all: usize = cards.iter().map(|card| card.height() + 1).sum();
        let is_loose = all <= height + 1;
        let mut lines = Vec::with_capacity(all);
        for card in cards {
            if is_loose && !lines.is_empty() {
                lines.push(Line::raw(""));
            }
            lines.extend(card.lines(width, state.theme));
        }
        lines
    };
    columns.into_iter().map(lines).collect()
}

/// Leaves out rows of the cards with the most, unless the column does not fit anyway.
fn fit(cards: &mut [Card], width: usize, height: usize) {
    let left_out = |card: &Card| card.rows.len().saturating_sub(MIN_ROWS);
    let all: usize = cards.iter().map(Card::height).sum();
    let over = all.saturating_sub(height);
    if over > cards.iter().map(left_out).sum() {
        return;
    }
    for _ in 0..over {
        // Of equal ones, the last.
        if let Some(longest) = cards.iter_mut().max_by_key(|card| card.rows.len()) {
            longest.shorten(width);
        }
    }
}

/// The cards that there are, in their order.
fn cards(state: &UiState, said: &Overview, width: usize) -> Vec<Card> {
    let card = |name: &'static str| match name {
        "grows" => Some(of_functions(
            "Grows",
            &said.grows.sentence,
            &said.grows.rows,
            width,
            state,
        )),
        "made_of" => Some(made_of(&said.made_of, width)),
        "heap" if state.is_saved => None,
        "heap" => Some(heap(state, width)),
        _ => {
            let peak = said.peak.as_ref()?;
            Some(of_functions(
                "Peak",
                &peak.sentence,
                &peak.rows,
                width,
                state,
            ))
        }
    };
    said.order.into_iter().filter_map(card).collect()
}

fn of_functions(
    title: &'static str,
    sentence: &str,
    rows: &[FunctionRow],
    width: usize,
    state: &UiState,
) -> Card {
    let mut card = Card::new(title, sentence, width);
    let grows = rows.iter().any(|row| row.per_hour.is_some());
    let rows = rows.iter().take(ROWS);
    let rows = rows.map(|row| Row::Table(function(row, grows, width, state.theme)));
    card.rows.extend(rows);
    card
}

/// A function: what it holds, how fast that grows, its name, and its place in the source. A narrow card has one of the figures.
fn function(row: &FunctionRow, grows: bool, width: usize, theme: Theme) -> Line<'static> {
    let rate = row.per_hour.map(per_hour).unwrap_or_default();
    let (figures, rate) = match (grows, width >= TWO_FIGURES) {
        (false, _) => (format!("{:>FIGURE$}", size(row.bytes)), String::new()),
        (true, true) => (
            format!("{:>FIGURE$}", size(row.bytes)),
            format!("{rate:>RATE$}"),
        ),
        (true, false) if rate.is_empty() => (format!("{:>RATE$}", size(row.bytes)), rate),
        (true, false) => (String::new(), format!("{rate:>RATE$}")),
    };
    let picture = match grows && width >= WITH_PICTURE {
        true => format!("  {:<PICTURE$}", sparkline(&row.values, PICTURE)),
        false => String::new(),
    };
    let used = [&figures, &rate, &picture].map(|text| text.chars().count());
    let left = width.saturating_sub(used.iter().sum::<usize>() + 2);
    let name = name_and_place(row, left);
    let name = match row.own {
        true => Span::raw(name),
        false => Span::styled(name, theme.dim()),
    };
    Line::from(vec![
        Span::raw(figures),
        Span::styled(rate, theme.bad()),
        Span::styled(picture, theme.accent()),
        Span::raw("  "),
        name,
    ])
}

/// `+1.2 MiB/h`.
fn per_hour(rate: i64) -> String {
    let sign = if rate < 0 { "\u{2212}" } else { "+" };
    format!("{sign}{}/h", size(rate.unsigned_abs()))
}

/// `name (file:line)`. What does not fit loses first its arguments, then its middle, but no line number.
fn name_and_place(row: &FunctionRow, width: usize) -> String {
    let name = row.function.as_deref().unwrap_or("[no symbol]");
    let (name, place) = (printable(name), printable(&row.place));
    let left = width.saturating_sub(" ()".len());
    let name_length = name.chars().count();
    let for_place = left - (left / NAME).min(name_length);
    let place = match place.rsplit_once(':') {
        Some((file, line)) => {
            let for_file = for_place.saturating_sub(line.chars().count() + 1);
            format!("{}:{line}", cut_middle(file, for_file))
        }
        None => cut_middle(&place, for_place),
    };
    let for_name = left.saturating_sub(place.chars().count());
    let shorter = without_arguments(&name).filter(|_| name_length > for_name);
    let name = shorter.as_deref().unwrap_or(&name);
    format!("{} ({place})", cut_middle(name, for_name))
}

/// `load(…)` of `load(unsigned long)`; `None` if a name has no arguments.
fn without_arguments(name: &str) -> Option<String> {
    let mut depth = 0;
    let inside = name.strip_suffix(')')?;
    let begin = inside.char_indices().rev().find_map(|(at, c)| {
        depth += i32::from(c == ')') - i32::from(c == '(');
        (depth < 0).then_some(at)
    });
    let begin = begin.filter(|at| *at > 0 && at + 1 < inside.len())?;
    Some(format!("{}(…)", &name[..begin]))
}

fn made_of(said: &MadeOf, width: usize) -> Card {
    let mut card = Card::new("Made of", &said.sentence, width);
    let beside = usize::from(!said.beside.is_empty());
    let row = |part: &Part| {
        let bar = match width >= WITH_BAR {
            true => {
                let blocks = part.bytes as f64 * PICTURE as f64 / said.rss.max(1) as f64;
                format!("  {:<PICTURE$}", "█".repeat(blocks.round() as usize))
            }
            false => String::new(),
        };
        let share = percent(part.bytes, said.rss);
        Row::Table(Line::raw(format!(
            "{:>FIGURE$} {share:>5} %{bar}  {}",
            size(part.bytes),
            part.name
        )))
    };
    let parts = said.parts.iter().take(ROWS - beside);
    card.rows.extend(parts.map(row));
    let beside: Vec<String> = said
        .beside
        .iter()
        .map(|part| format!("{} {}", size(part.bytes), part.name))
        .collect();
    if !beside.is_empty() {
        card.text(&format!("Not in RSS: {}", beside.join(", ")), width);
    }
    card
}

/// The newest snapshot, of the process that is shown alone if one is.
fn heap(state: &UiState, width: usize) -> Card {
    let alone = state.process_alone();
    let said = state.heap.said.as_ref();
    let said = said.filter(|said| alone.is_none() || said.pid.is_none() || said.pid == alone);
    let Some((said, (first, more))) =
        said.and_then(|said| Some((said, said.sentences.split_first()?)))
    else {
        let mut card = Card::new("Heap", NO_SNAPSHOT, width);
        card.text(HOW, width);
        return card;
    };
    let mut card = Card::new("Heap", first, width);
    card.text(&more.join(" "), width);
    if said.pid.is_some() {
        card.text(&format!("({})", said.about), width);
    }
    card
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_arguments_then_their_middle_and_no_line() {
        let shown = |function: &str, place: &str, width| {
            let row = FunctionRow {
                function: Some(function.to_owned()),
                place: place.to_owned(),
                path: String::new(),
                bytes: 0,
                per_hour: None,
                values: Vec::new(),
                own: true,
            };
            name_and_place(&row, width)
        };
        let load = "app::Loader::load(void (*)(int), unsigned long)";
        assert_eq!(
            shown(load, "frag.cpp:11", 80),
            format!("{load} (frag.cpp:11)")
        );
        assert_eq!(
            shown(load, "frag.cpp:11", 36),
            "app::Loader::load(…) (frag.cpp:11)"
        );
        assert_eq!(shown(load, "frag.cpp:11", 25), "app::…ad(…) (frag.cpp:11)");
        assert_eq!(shown("forget()", "frag.cpp:13", 20), "forget() (fra…pp:13)");
        let long = "a_very_long_file_name.cpp:1234";
        assert_eq!(shown("load", long, 24), "load (a_very…e.cpp:1234)");
        for width in 0..60 {
            let most = width.max(" ():1234".len() + 2);
            assert!(shown(load, long, width).chars().count() <= most, "{width}");
        }
    }
}
