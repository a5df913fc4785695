//! The page keeps up with its target: the timeline's newest sample and marks, and the stream of events.

use serde_json::json;

use super::lists::{PLOT, drawn, until};
use super::live::Run;

/// The number of marks that are drawn: columns of the plot in which most pixels have the colour of the text.
const MARKS: &str = "
    const canvas = document.querySelector('#timeline canvas');
    const [of, plot] = [canvas, document.querySelector('#timeline .u-over')].map((e) => e.getBoundingClientRect());
    const { width, height, data } = canvas.getContext('2d')
        .getImageData(plot.left - of.left, plot.top - of.top, plot.width, plot.height);
    const text = getComputedStyle(document.body).color.match(/\\d+/g).map(Number);
    const same = (x, y) => data[4 * (y * width + x) + 3] > 200 && text.every((v, i) => Math.abs(v - data[4 * (y * width + x) + i]) < 40);
    const filled = (x) => Array.from({ length: height }, (_, y) => same(x, y)).filter(Boolean).length;
    return Array.from({ length: width }, (_, x) => filled(x)).filter((n) => n > height * 0.4).length;";

#[test]
fn the_timeline_moves_on_and_shows_new_marks() {
    let (run, browser) = Run::shown("#view=flame");
    let times = || {
        let times = run.api("/v2/series")["times"].clone();
        serde_json::from_value::<Vec<u64>>(times).unwrap()
    };
    for (width, height) in [(1440, 900), (390, 844)] {
        browser.size(width, height);
        browser.open("#view=flame");
        drawn(&browser);
        let before = *times().last().unwrap();
        // The right end of the plot is a sample that was taken since.
        until(|| {
            browser.point(PLOT, 0.999);
            let clock =
                "return arguments[0].map((ms) => `at ${new Date(ms).toTimeString().slice(0, 8)}`)
                .includes(document.querySelector('.timeline-foot .faint').textContent)";
            let later: Vec<u64> = times().into_iter().filter(|t| *t > before + 1000).collect();
            browser.run(clock, json!([later])) == true
        });
        let drawn = || browser.run(MARKS, json!([])).as_u64().unwrap();
        let marks = drawn();
        browser.press("m");
        until(|| drawn() == marks + 1);
    }
}

#[test]
fn a_load_opens_one_stream_of_events() {
    let (_run, browser) = Run::shown("#view=flame");
    let live = "document.getElementById('connection').textContent === 'live'";
    browser.wait(live);
    browser.errors();
    for link in ["", "#view=functions"] {
        browser.requests();
        browser.open(link);
        browser.wait(live);
        // Events were opened before the page can show a sample.
        drawn(&browser);
        let streams = browser.requests();
        let streams = streams.iter().filter(|url| url.ends_with("/v2/events"));
        assert_eq!(streams.count(), 1, "{link}");
    }
}
