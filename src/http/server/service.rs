//! Answers the server's requests with the API's routes and the page's files.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use memprof_server::{Asset, Method, Refusal, Reply, Request, SMALL_BODY, Service};

use super::formats;
use crate::http::api::{Api, ApiError, RequestParts, Route};
use crate::http::web;

impl Service for Api {
    const PROGRAM: &'static str = super::PROGRAM;
    const VITAL: &'static [&'static str] = &["/v2/health", "/metrics"];

    fn asset(&self, path: &str) -> Option<&'static Asset> {
        web::find(path)
    }

    fn methods(&self, path: &str) -> Vec<Method> {
        Route::at(path).map(|(route, _)| route.method).collect()
    }

    fn largest_body(&self, path: &str) -> usize {
        let post = Route::at(path).find(|(route, _)| route.method == Method::Post);
        post.map_or(SMALL_BODY, |(route, _)| route.largest_body)
    }

    async fn answer(&self, request: Request<'_>) -> Result<Reply, Refusal> {
        let mut routes = Route::at(request.path);
        let (route, name) = routes
            .find(|(route, _)| route.method == request.method)
            .ok_or(ApiError::NotFound(None))?;
        let given = RequestParts {
            query: request.query,
            body: request.body,
            local: request.local,
            plain_text: formats::prefers_text(request.headers),
        };
        let request = route.request(name, given)?;
        Ok(Api::answer(self, request).await?)
    }

    fn late(&self, limit: Duration) -> Refusal {
        let late = format!("it took longer than {} s", limit.as_secs_f32());
        ApiError::Unavailable(late).into()
    }

    async fn background(self: Arc<Self>) {
        self.sample().await;
    }

    fn is_short_of_room(&self) -> bool {
        Api::is_short_of_room(self)
    }

    fn close(&self) {
        Api::close(self);
    }
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Refusal {
        let status = match error {
            ApiError::NotFound(_) => StatusCode::NOT_FOUND,
            ApiError::BadRequest(_) | ApiError::TooLarge(_) => StatusCode::BAD_REQUEST,
            ApiError::Forbidden(_) => StatusCode::FORBIDDEN,
            ApiError::Full(_) => StatusCode::CONFLICT,
            ApiError::Busy(_) | ApiError::Unavailable(_) | ApiError::Failed(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ApiError::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refusal(status, error.to_string())
    }
}
