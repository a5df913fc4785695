//! The routing table: each route is one line of [`ROUTES`].

use super::query::{Query, UnknownParams};
use super::request::{Request, RequestContext, RequestParts};
use super::{
    ApiError, OPENAPI_V1, OPENAPI_V2, allocations, call_tree, cgroup, diff, events, export, files,
    fixed, functions, growth, health, heap, heap_diff, mappings, marks, memory, metrics, open,
    overview, processes, series, source, summary, v1,
};

pub use memprof_server::{Method, SMALL_BODY};

/// A route of the API.
#[derive(Clone, Copy)]
pub struct Route {
    /// The HTTP method.
    pub method: Method,
    /// The path, without a trailing slash; `{}` matches any one segment.
    pub path: &'static str,
    /// The known query parameters.
    pub parameters: &'static [&'static str],
    /// Maximum body size, in bytes. Bodies larger than [`SMALL_BODY`] are accepted only from this machine, one at a
    /// time.
    pub largest_body: usize,
    /// Whether the route belongs to the `/v1` contract: its path may end in a slash.
    v1: bool,
    unknown_params: UnknownParams,
    read: fn(&RequestContext<'_>) -> Result<Request, ApiError>,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}", self.method, self.path)
    }
}

type Read = fn(&RequestContext<'_>) -> Result<Request, ApiError>;

const fn v1(path: &'static str, parameters: &'static [&'static str], read: Read) -> Route {
    Route {
        v1: true,
        ..lenient(get(path, parameters, read))
    }
}

const fn get(path: &'static str, parameters: &'static [&'static str], read: Read) -> Route {
    let unknown_params = UnknownParams::Refused;
    let method = Method::Get;
    Route {
        method,
        path,
        parameters,
        largest_body: SMALL_BODY,
        v1: false,
        unknown_params,
        read,
    }
}

const fn other(method: Method, path: &'static str, read: Read) -> Route {
    Route {
        method,
        ..get(path, &[], read)
    }
}

const fn lenient(route: Route) -> Route {
    Route {
        unknown_params: UnknownParams::Ignored,
        ..route
    }
}

const fn strict(route: Route) -> Route {
    Route {
        unknown_params: UnknownParams::Refused,
        ..route
    }
}

/// All routes.
pub const ROUTES: &[Route] = &[
    v1("/v1/tree", v1::TREE, v1::tree),
    strict(v1("/v1/pid", &[], v1::pid)),
    lenient(get("/openapi/memory-profiler-openapi.json", &[], |_| {
        fixed::json(OPENAPI_V1)
    })),
    lenient(get("/openapi/memprof-v2.json", &[], |_| {
        fixed::json(&OPENAPI_V2)
    })),
    get("/v2/summary", summary::PARAMETERS, summary::read),
    get("/v2/overview", overview::PARAMETERS, overview::read),
    get("/v2/processes", processes::PARAMETERS, processes::read),
    get("/v2/cgroup", cgroup::PARAMETERS, cgroup::read),
    get("/v2/tree", call_tree::PARAMETERS, call_tree::read),
    get("/v2/functions", functions::PARAMETERS, functions::read),
    get(
        "/v2/allocations",
        allocations::PARAMETERS,
        allocations::read,
    ),
    get("/v2/source", source::PARAMETERS, source::read),
    get("/v2/files", files::PARAMETERS, files::read),
    get("/v2/files/stacks", files::OF_STACKS, files::stacks),
    get("/v2/maps", mappings::PARAMETERS, mappings::read),
    get("/v2/series", series::PARAMETERS, series::read),
    get("/v2/marks", &[], marks::list),
    other(Method::Post, "/v2/marks", marks::keep),
    Route {
        parameters: open::PARAMETERS,
        largest_body: open::LARGEST,
        ..other(Method::Post, "/v2/marks/open", open::read)
    },
    other(Method::Delete, "/v2/marks/{}", marks::forget),
    get("/v2/diff", diff::PARAMETERS, diff::read),
    get("/v2/growth", growth::PARAMETERS, growth::read),
    get("/v2/heap", &[], heap::list),
    other(Method::Post, "/v2/heap", heap::take),
    get("/v2/heap/diff", heap_diff::PARAMETERS, heap_diff::read),
    get("/v2/heap/{}", &[], heap::show),
    other(Method::Delete, "/v2/heap/{}", heap::forget),
    get("/v2/events", &[], events::read),
    get("/v2/health", &[], health::read),
    get("/v2/exports", &[], export::list),
    get("/v2/export/{}", export::PARAMETERS, export::read),
    lenient(get("/metrics", &[], metrics::read)),
    lenient(get("/debug/pprof/heap", &[], export::pprof)),
    get("/debug/memory", memory::PARAMETERS, memory::read),
];

impl Route {
    /// The routes that match a path of a request line, without its query, and the path segment that matches `{}`. Paths
    /// are compared without percent-decoding.
    pub fn at(path: &str) -> impl Iterator<Item = (&'static Route, &str)> {
        ROUTES
            .iter()
            .filter_map(move |route| route.matches(path).map(|name| (route, name)))
    }

    fn matches<'p>(&self, path: &'p str) -> Option<&'p str> {
        if let Some(base) = self.path.strip_suffix("{}") {
            let name = path.strip_prefix(base)?;
            return (!name.is_empty() && !name.contains('/')).then_some(name);
        }
        let rest = path.strip_prefix(self.path)?;
        (rest.is_empty() || (self.v1 && rest == "/")).then_some("")
    }

    /// Whether the route belongs to the `/v1` contract.
    pub fn is_v1(&self) -> bool {
        self.v1
    }

    /// Parses a request.
    ///
    /// # Errors
    /// [`ApiError::BadRequest`] for an invalid or repeated value and, except on `/v1/tree` and the OpenAPI
    /// documents, for an unknown parameter; [`ApiError::Forbidden`] for requests that only local clients may
    /// make.
    pub fn request(&self, name: &str, given: RequestParts<'_>) -> Result<Request, ApiError> {
        let query = Query::read(self.path, given.query, self.parameters, self.unknown_params)?;
        (self.read)(&RequestContext {
            query,
            name,
            body: given.body,
            local: given.local,
            plain_text: given.plain_text,
        })
    }
}
