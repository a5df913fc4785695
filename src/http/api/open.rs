//! `POST /v2/marks/open`: stores a saved profile as a mark, so that every view can show it and compare with it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::marks::MarkReply;
use super::query::bad;
use super::reply::{self, internal};
use super::request::RequestContext;
use super::store::checked_name;
use super::{Api, ApiError, BoxFuture, Endpoint, Reply, Request};
use memprof_profile::{Report, saved};

/// Parameters of `/v2/marks/open`.
pub(super) const PARAMETERS: &[&str] = &["name"];

/// Maximum file size, in bytes; `memprof open` accepts larger files.
pub(super) const LARGEST: usize = 32 << 20;

/// Number of the first opened file's report. The range is separate from the target's reports, and a browser can
/// represent it exactly.
pub(super) const FIRST: u64 = 1 << 52;

/// Number of the next opened file's report.
static NEXT: AtomicU64 = AtomicU64::new(FIRST);

/// `POST /v2/marks/open`.
pub(super) fn read(asked: &RequestContext<'_>) -> Result<Request, ApiError> {
    if !asked.local {
        let message = "only programs on this machine may open a file here: use a loopback address, without a \
                       proxy, or run `memprof open FILE`";
        return Err(ApiError::Forbidden(message.to_owned()));
    }
    Ok(Arc::new(Open {
        name: checked_name(asked.query.text("name").map(str::to_owned))?,
        file: asked.body.clone(),
    }))
}

struct Open {
    name: Option<String>,
    file: Bytes,
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Open {:?}, {} bytes", self.name, self.file.len())
    }
}

impl Endpoint for Open {
    fn answer<'a>(&'a self, api: &'a Api) -> BoxFuture<'a, Result<Reply, ApiError>> {
        Box::pin(async {
            api.marks.check_room()?;
            let file = self.file.clone();
            let read = move || saved::read(&file[..], LARGEST as u64);
            let saved = tokio::task::spawn_blocking(read).await.map_err(internal)?;
            let saved = saved.map_err(|e| bad(format!("cannot open the saved profile: {e}")))?;
            let report = Report {
                sequence: NEXT.fetch_add(1, Ordering::Relaxed),
                ..saved.into()
            };
            let mark = api.marks.add(self.name.clone(), Arc::new(report), None)?;
            reply::created(&MarkReply::from(&mark))
        })
    }
}
