//! The answer first: what a report says, in sentences and short lists. The summary, `memprof top`, the page and its HTML report
//! show the same.

mod cards;
mod change;
mod functions;
mod notes;
mod text;

use schemars::JsonSchema;
use serde::Serialize;

pub(crate) use self::change::Change;
use self::functions::OwnFunction;
pub(crate) use self::functions::{key, own_functions, place};
use super::growth::GrowthTable;
use memprof_profile::{Profile, Report};

/// Maximum number of rows in a card.
pub(crate) const ROWS: usize = 7;
/// Share of a target's memory without a stack from which on its composition says more than its functions.
const MOSTLY: f64 = 0.9;

/// What a report says.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(inline)]
pub struct Overview {
    /// What resident memory is made of.
    pub made_of: MadeOf,
    /// What grows.
    pub grows: Grows,
    /// The highest resident memory; null if it is unknown.
    pub peak: Option<PeakCard>,
    /// What makes figures weaker or needs an act.
    pub notes: Vec<Note>,
    /// The cards in the order of what they say about this target.
    #[schemars(extend("items" = {"type": "string", "enum": ["grows", "made_of", "heap", "peak"]}))]
    pub order: [&'static str; 4],
}

/// What resident memory is made of.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(rename = "OverviewMadeOf")]
pub struct MadeOf {
    /// A sentence.
    pub sentence: String,
    /// Resident memory as ps shows it, in bytes: the sum of the parts.
    pub rss: u64,
    /// Its parts, largest first.
    pub parts: Vec<Part>,
    /// Memory that is not in rss: swap, page cache, page tables.
    pub beside: Vec<Part>,
}

/// A part of memory.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[schemars(rename = "OverviewPart")]
pub struct Part {
    /// What it is.
    pub name: &'static str,
    /// Bytes.
    pub bytes: u64,
}

/// What grows.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(rename = "OverviewGrows")]
pub struct Grows {
    /// A sentence.
    pub sentence: String,
    /// The program's functions: those that certainly grow, then those that hold most.
    pub rows: Vec<FunctionRow>,
}

/// The highest resident memory.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(rename = "OverviewPeak")]
pub struct PeakCard {
    /// A sentence.
    pub sentence: String,
    /// The program's functions that held most at that moment.
    pub rows: Vec<FunctionRow>,
}

/// A function and the resident memory that it holds: of the stacks in which it is the innermost function of the program.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(rename = "OverviewFunction")]
pub struct FunctionRow {
    /// Its name; null if the file has no symbol.
    pub function: Option<String>,
    /// The source line that its largest stack goes through, as `FILE:LINE`; the name of its file if no line is known.
    pub place: String,
    /// Path of the file that has its code.
    pub path: String,
    /// Bytes that it holds.
    pub bytes: u64,
    /// Growth per hour in bytes, where it is certain and goes on; else null.
    pub per_hour: Option<i64>,
    /// Means of equal intervals of the time that was looked at, in bytes; empty if no growth is certain.
    pub values: Vec<u64>,
    /// Whether it is code of the program itself.
    pub own: bool,
}

/// What makes figures weaker or needs an act.
#[derive(Clone, Debug, JsonSchema, Serialize)]
#[schemars(rename = "OverviewNote")]
pub struct Note {
    /// A sentence.
    pub text: String,
    /// The view of the page that shows more; null if there is none.
    pub view: Option<&'static str>,
}

impl Overview {
    /// What a report says, with that of the peak and what grew lately, if they are known.
    pub fn new(report: &Report, peak: Option<&Report>, growth: Option<&GrowthTable>) -> Overview {
        let profile = &report.profile;
        let functions = cards::of_program(own_functions(report));
        let before = share_without_stack(profile);
        let order = match before >= MOSTLY {
            true => ["made_of", "heap", "grows", "peak"],
            false if !profile.target.alive => ["peak", "made_of", "grows", "heap"],
            false => ["grows", "made_of", "heap", "peak"],
        };
        let mut grows = Grows::new(profile, &functions, growth);
        if let Some(sentence) = cards::live_heap(report) {
            grows.sentence = format!("{} {sentence}", grows.sentence);
        }
        Overview {
            made_of: MadeOf::new(profile),
            grows,
            peak: PeakCard::new(report, peak),
            notes: notes::of_report(report),
            order,
        }
    }
}

impl Overview {
    /// The sentence of the first card that has one.
    pub fn answer(&self) -> String {
        match (self.order[0], &self.peak) {
            ("peak", Some(peak)) => peak.sentence.clone(),
            ("made_of", _) => self
                .notes
                .iter()
                .find(|note| note.view == Some("heap"))
                .map_or_else(|| self.made_of.sentence.clone(), |note| note.text.clone()),
            _ => self.grows.sentence.clone(),
        }
    }
}

/// The share of resident memory that no stack is known of.
fn share_without_stack(profile: &Profile) -> f64 {
    let rows = profile.not_observed.iter();
    let bytes: u64 = rows.map(|row| row.amounts.usage.resident()).sum();
    bytes as f64 / profile.total.usage.resident().max(1) as f64
}
