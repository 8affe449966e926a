-- oldest_code: 4
-- Who did what, and who may do what over HTTP. Older code does no harm here: it has no HTTP API.

-- id: made before any SQL, so that a commit that is repeated writes one row. request: the id of the HTTP request
ALTER TABLE holdfast_audit ADD COLUMN id text;
ALTER TABLE holdfast_audit ADD COLUMN request text;
CREATE UNIQUE INDEX holdfast_audit_id ON "holdfast_audit" (id);

-- tenant: NULL for the control place, '*' for all tenants. chain: the one chain of a link, NULL for a token. payloads: 0
-- leaves out inputs, outputs and errors. used_at: to five minutes
ALTER TABLE holdfast_token ADD COLUMN tenant text;
ALTER TABLE holdfast_token ADD COLUMN chain text;
ALTER TABLE holdfast_token ADD COLUMN payloads bigint NOT NULL DEFAULT 1;
ALTER TABLE holdfast_token ADD COLUMN created_by text;
ALTER TABLE holdfast_token ADD COLUMN used_at bigint;
-- there may be a link for each customer, and a few tokens between them
CREATE INDEX holdfast_token_people ON "holdfast_token" (id) WHERE chain IS NULL;
CREATE INDEX holdfast_token_tokens ON "holdfast_token" (tenant, id) WHERE chain IS NULL;
CREATE INDEX holdfast_token_links ON "holdfast_token" (tenant, id) WHERE chain IS NOT NULL;
CREATE INDEX holdfast_token_expired ON "holdfast_token" (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX holdfast_token_revoked ON "holdfast_token" (revoked_at) WHERE revoked_at IS NOT NULL;

-- the sessions of browsers; hash: of the id in the cookie. token: whose rights it has
CREATE TABLE holdfast_session (
    hash text PRIMARY KEY,
    token text NOT NULL,
    created_at bigint NOT NULL,
    seen_at bigint NOT NULL
);
CREATE INDEX holdfast_session_created ON "holdfast_session" (created_at);
