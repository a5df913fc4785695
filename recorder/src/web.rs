//! The web page: files of `src/web/`, embedded in the binary. Each file is one line in [`ASSETS`].

const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// A file of the page.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// The path at which the file is served.
    pub path: &'static str,
    /// MIME type.
    pub content_type: &'static str,
    /// The content.
    pub bytes: &'static [u8],
}

/// Embeds files of `src/web/`; each is served below `/assets/` under its own name.
macro_rules! assets {
    ($($content_type:expr, $file:literal;)*) => {
        &[
            Asset {
                path: "/",
                content_type: "text/html; charset=utf-8",
                bytes: include_bytes!("web/index.html"),
            },
            $(Asset {
                path: concat!("/assets/", $file),
                content_type: $content_type,
                bytes: include_bytes!(concat!("web/", $file)),
            },)*
        ]
    };
}

/// All files of the page.
pub static ASSETS: &[Asset] = assets! {
    JS, "app.js";
    CSS, "details.css";
    SVG, "icon.svg";
    JS, "js/answer.js";
    JS, "js/api.js";
    JS, "js/bytes.js";
    JS, "js/connections.js";
    JS, "js/details.js";
    JS, "js/dom.js";
    JS, "js/feed.js";
    JS, "js/filters.js";
    JS, "js/format.js";
    JS, "js/help.js";
    JS, "js/list.js";
    JS, "js/state.js";
    JS, "js/theme.js";
    CSS, "style.css";
};

/// The file served at this path.
pub fn find(path: &str) -> Option<&'static Asset> {
    ASSETS.iter().find(|asset| asset.path == path)
}
